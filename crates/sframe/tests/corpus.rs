//! The shared corpus: every section's text equals that of binutils, and its functions and rows
//! equal those of a second reader.

use crate::common;

use backtrail_sframe::{Section, dump};

#[test]
fn text_is_what_binutils_prints() {
    let Some(cases) = common::corpus() else { return };
    let mut sections = 0;
    for case in &cases {
        let expected = match case.text.find("Contents of the SFrame section") {
            Some(start) => &case.text[start..],
            None => {
                assert!(case.bytes.is_empty(), "{}: text without a section", case.name);
                assert!(Section::parse(&case.bytes, case.address).is_err());
                continue;
            }
        };
        let section = Section::parse(&case.bytes, case.address).unwrap();
        let mut text = String::new();
        dump::dump(&section, ".sframe", &mut text).unwrap();
        assert_eq!(text, expected, "{}", case.name);
        sections += 1;
    }
    assert_eq!((cases.len(), sections), (44, 39));
}

#[test]
fn rows_and_lookups_agree_with_the_second_reader() {
    let Some(cases) = common::corpus() else { return };
    let (mut functions, mut rows, mut pcs) = (0, 0, 0);
    for case in cases.iter().filter(|case| !case.bytes.is_empty()) {
        let section = Section::parse(&case.bytes, case.address).unwrap();
        let naive = common::naive::read(&case.bytes, case.address);
        assert_eq!(section.functions().len(), naive.len());
        for (fde, expected) in section.functions().zip(&naive) {
            let fde = fde.unwrap();
            assert_eq!(fde.function().start, expected.start, "{}", case.name);
            assert_eq!(u64::from(fde.function().size), expected.size, "{}", case.name);
            let read: Vec<_> = fde.rows().map(Result::unwrap).collect();
            assert_eq!(read, expected.rows, "{}", case.name);
            functions += 1;
            rows += read.len();
        }
        let first = naive.iter().map(|function| function.start).min().unwrap();
        let end = naive
            .iter()
            .map(|function| function.start + function.size)
            .max()
            .unwrap();
        for pc in first.saturating_sub(20)..end + 20 {
            let found = section.lookup(pc).unwrap();
            let expected = common::naive::look_up(&naive, pc);
            assert_eq!(
                found.map(|found| (found.function.start, found.row)),
                expected.map(|(index, row)| (naive[index].start, row)),
                "{} at {pc:#x}",
                case.name
            );
            pcs += 1;
        }
    }
    println!("{functions} functions, {rows} rows, {pcs} program counters");
    assert!(functions > 70 && rows > 150 && pcs > 3000);
}
