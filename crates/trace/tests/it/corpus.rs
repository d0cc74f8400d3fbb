//! Public traces: those that must be accepted print what babeltrace2 prints, those that must be
//! refused are refused.

use crate::support;
use crate::support::{comparable, corpus};
use std::fs;

/// How many cases agree today; more is welcome, fewer is a mistake.
const AGREE_1_8: usize = 126;
const AGREE_2: usize = 34;
const REFUSED: usize = 110;

#[test]
fn public_traces() {
    let Some(corpus) = corpus() else { return };
    let list = fs::read_to_string(corpus.join("must.tsv")).unwrap();
    let (mut agree_1_8, mut agree_2, mut refused) = (0, 0, 0);
    for line in list.lines().skip(1) {
        let columns: Vec<&str> = line.split('\t').collect();
        let [id, dialect, must, _, path, ..] = columns[..] else {
            panic!("{line}")
        };
        let result = support::text_below(&corpus.join(path)).map(|text| String::from_utf8_lossy(&text).into_owned());
        match (must, result) {
            ("accept", Ok(text)) => {
                let reference = corpus.join("ref").join(format!("{id}.text"));
                let agrees = match fs::read_to_string(reference) {
                    Ok(expected) => comparable(&text) == comparable(&expected),
                    Err(_) => true,
                };
                if !agrees {
                    println!("differs: {id}");
                    if std::env::var_os("SHOW").is_some() {
                        let expected =
                            comparable(&fs::read_to_string(corpus.join("ref").join(format!("{id}.text"))).unwrap());
                        let ours = comparable(&text);
                        let pair = ours.iter().zip(&expected).find(|(a, b)| a != b);
                        println!("{} {} {pair:#?}", ours.len(), expected.len());
                    }
                } else if dialect == "2" {
                    agree_2 += 1;
                } else {
                    agree_1_8 += 1;
                }
            }
            ("accept", Err(error)) => println!("refused: {id}: {error}"),
            ("refuse", Err(_)) => refused += 1,
            ("refuse", Ok(_)) => println!("accepted: {id}"),
            _ => {}
        }
    }
    println!("agree: {agree_1_8} of 1.8, {agree_2} of 2; refused: {refused}");
    assert!(agree_1_8 >= AGREE_1_8 && agree_2 >= AGREE_2 && refused >= REFUSED);
}
