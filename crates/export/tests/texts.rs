//! The formats that are text, with names that have a meaning in them.

use backtrail_export::{Format, write};

use crate::invented::{HOSTILE, Stack, hostile, samples};

fn text(format: Format, samples: &backtrail_export::Samples) -> String {
    let mut out = Vec::new();
    write(samples, format, HOSTILE, &mut out).expect("memory can be written");
    String::from_utf8(out).expect("it is text")
}

#[test]
fn hostile_names_stay_on_their_lines() {
    let folded = text(Format::Folded, &hostile());
    assert_eq!(folded.lines().count(), 1, "{folded}");
    assert!(folded.ends_with(" 5\n"), "{folded}");
    let script = text(Format::PerfScript, &hostile());
    // Five samples: a line for each, two frames, an empty line.
    assert_eq!(script.lines().count(), 5 * 4, "{script}");
    assert!(!script.contains('\u{202e}') && !script.contains('\u{1b}'), "{script}");
}

#[test]
fn a_sample_of_perf_script() {
    let samples = samples(&[Stack {
        thread: 3,
        names: &["main", "work"],
        from_ms: 1500,
        samples: 1,
    }]);
    assert_eq!(
        text(Format::PerfScript, &samples),
        "third 3/3 [003] 1.500000000: 1 samples: \n\
         \t              10 work (/usr/bin/program)\n\
         \t               0 main (/usr/bin/program)\n\n"
    );
}

#[test]
fn no_stack_is_left_out_of_folded_ones() {
    let names: Vec<String> = (0..200).map(|index| format!("f{index:03}")).collect();
    let stacks: Vec<[&str; 2]> = names.iter().map(|name| ["main", name.as_str()]).collect();
    let stacks: Vec<Stack<'_>> = stacks
        .iter()
        .enumerate()
        .map(|(index, names)| Stack {
            thread: 1,
            names,
            from_ms: 0,
            samples: index as u64 + 1,
        })
        .collect();
    let folded = text(Format::Folded, &samples(&stacks));
    let expected: String = (0..200)
        .map(|index| format!("first;main;f{index:03} {}\n", index + 1))
        .collect();
    assert_eq!(folded, expected);
}

/// A recording without samples is a valid file of every format.
#[test]
fn nothing_is_exported_as_nothing() {
    for format in Format::ALL {
        let mut out = Vec::new();
        write(&samples(&[]), format, "empty", &mut out).expect("memory can be written");
        let is_json = matches!(format, Format::Firefox | Format::Speedscope);
        assert!(
            !is_json || serde_json::from_slice::<serde_json::Value>(&out).is_ok(),
            "{}",
            format.name()
        );
    }
}
