//! Call frame information built byte by byte: each rule, on each CPU, and its conversion.

use backtrail_arch::{Arch, aarch64, s390x, x86_64};
use backtrail_cfi::eh_frame::{self, Converted, EhFrame, ErrorKind, Reason, Skipped};
use backtrail_sframe::{Base, Location, Rule};
use backtrail_wire::Endian;

const ADVANCE: u8 = 0x40;
const OFFSET: u8 = 0x80;
const RESTORE: u8 = 0xc0;
const UNDEFINED: u8 = 0x07;
const SAME_VALUE: u8 = 0x08;
const REGISTER: u8 = 0x09;
const REMEMBER: u8 = 0x0a;
const RESTORE_STATE: u8 = 0x0b;
const DEF_CFA: u8 = 0x0c;
const DEF_CFA_OFFSET: u8 = 0x0e;
const DEF_CFA_EXPRESSION: u8 = 0x0f;
const EXPRESSION: u8 = 0x10;
const VAL_OFFSET: u8 = 0x14;
const VAL_EXPRESSION: u8 = 0x16;
const NEGATE_RA_STATE: u8 = 0x2d;

/// A section under construction, at address 0x10000.
struct Section {
    endian: Endian,
    arch: &'static Arch,
    bytes: Vec<u8>,
    cie: usize,
}

const ADDRESS: u64 = 0x1_0000;

impl Section {
    fn new(arch: &'static Arch, endian: Endian) -> Section {
        Section {
            endian,
            arch,
            bytes: Vec::new(),
            cie: 0,
        }
    }

    fn u32(&self, value: u32) -> [u8; 4] {
        match self.endian {
            Endian::Little => value.to_le_bytes(),
            Endian::Big => value.to_be_bytes(),
        }
    }

    fn entry(&mut self, content: &[u8]) {
        let padded = content.len().next_multiple_of(4);
        self.bytes.extend(self.u32(padded as u32));
        self.bytes.extend(content);
        self.bytes.resize(self.bytes.len() + padded - content.len(), 0);
    }

    fn cie(mut self, augmentation: &str, code: u8, data: u8, instructions: &[u8]) -> Section {
        self.cie = self.bytes.len();
        let mut content = vec![0, 0, 0, 0, 1];
        content.extend(augmentation.as_bytes());
        content.extend([0, code, data, self.arch.ra.0, 1, 0x1b]);
        content.extend(instructions);
        self.entry(&content);
        self
    }

    fn fde(mut self, start: u64, size: u32, instructions: &[u8]) -> Section {
        let at = self.bytes.len();
        let start_at = ADDRESS + at as u64 + 8;
        let mut content = self.u32((at + 4 - self.cie) as u32).to_vec();
        content.extend(self.u32(start.wrapping_sub(start_at) as u32));
        content.extend(self.u32(size));
        content.push(0);
        content.extend(instructions);
        self.entry(&content);
        self
    }

    fn convert(&self) -> Converted {
        eh_frame::convert(&EhFrame {
            data: &self.bytes,
            address: ADDRESS,
            text: None,
            got: None,
            arch: self.arch,
            endian: self.endian,
            code: vec![0x100..0x200, 0x1000..0x9000],
        })
    }
}

fn x86() -> Section {
    Section::new(&x86_64::ARCH, Endian::Little).cie("zR", 1, 0x78, &[DEF_CFA, 7, 8, OFFSET | 16, 1])
}

fn location(base: Base, offset: i32, deref: bool) -> Location {
    Location { base, offset, deref }
}

fn rule(cfa: Location, ra: Location, fp: Option<Location>) -> Option<Rule> {
    Some(Rule {
        cfa,
        ra,
        fp,
        mangled_ra: false,
    })
}

/// Row starts and rules of the only function.
fn rows(converted: &Converted) -> Vec<(u32, Option<Rule>)> {
    assert_eq!(converted.functions.len(), 1, "{converted:?}");
    let rows = &converted.functions[0].rows;
    rows.iter().map(|row| (row.start, row.rule)).collect()
}

/// The only row of a function of 16 bytes, on x86-64.
fn one(instructions: &[u8]) -> Result<Option<Rule>, Reason> {
    let converted = x86().fde(0x1000, 16, instructions).convert();
    match &converted.skipped[..] {
        [] => Ok(rows(&converted)[0].1),
        [skipped] => {
            assert_eq!((skipped.start, skipped.size), (0x1000, 16));
            assert!(converted.functions.is_empty());
            Err(skipped.reason)
        }
        more => panic!("{more:?}"),
    }
}

#[test]
fn registers_offsets_and_expressions() {
    let plain = Location::register(7, 8);
    let fp = |location| Ok(rule(plain, Location::saved(-8), Some(location)));
    assert_eq!(one(&[]), Ok(rule(plain, Location::saved(-8), None)));
    assert_eq!(one(&[OFFSET | 6, 2]), fp(Location::saved(-16)));
    assert_eq!(one(&[VAL_OFFSET, 6, 2]), fp(location(Base::Cfa, -16, false)));
    assert_eq!(one(&[REGISTER, 6, 12]), fp(location(Base::Register(12), 0, false)));
    assert_eq!(one(&[SAME_VALUE, 6]), Ok(rule(plain, Location::saved(-8), None)));
    // *(rbp + 0), as in functions that realign their stack.
    assert_eq!(
        one(&[EXPRESSION, 6, 2, 0x76, 0]),
        fp(location(Base::Register(6), 0, true))
    );
    // The stack starts with the CFA: *(CFA - 24), and CFA + 8 as a value.
    assert_eq!(one(&[EXPRESSION, 6, 2, 0x48, 0x1c]), fp(Location::saved(-24)));
    assert_eq!(one(&[VAL_EXPRESSION, 6, 2, 0x23, 8]), fp(location(Base::Cfa, 8, false)));
    assert_eq!(one(&[REGISTER, 16, 5]), Ok(rule(plain, Location::register(5, 0), None)));
    assert_eq!(one(&[UNDEFINED, 16, UNDEFINED, 6]), Ok(None));
    // The CFA: r10 + 0; *(rbp - 8); rsp + 16 in three operations.
    assert_eq!(
        one(&[DEF_CFA, 10, 0]),
        Ok(rule(Location::register(10, 0), Location::saved(-8), None))
    );
    let in_memory = location(Base::Register(6), -8, true);
    assert_eq!(
        one(&[DEF_CFA_EXPRESSION, 3, 0x76, 0x78, 6]),
        Ok(rule(in_memory, Location::saved(-8), None))
    );
    assert_eq!(
        one(&[DEF_CFA_EXPRESSION, 4, 0x77, 0, 0x40, 0x22]),
        Ok(rule(Location::register(7, 16), Location::saved(-8), None))
    );
}

#[test]
fn what_rows_cannot_say_has_a_reason() {
    // *(rsp + 16) + 8
    assert_eq!(
        one(&[DEF_CFA_EXPRESSION, 5, 0x77, 16, 6, 0x23, 8]),
        Err(Reason::CfaExpression)
    );
    assert_eq!(one(&[DEF_CFA, 16, 8]), Err(Reason::CfaRegister));
    assert_eq!(one(&[DEF_CFA, 40, 8]), Err(Reason::CfaRegister));
    assert_eq!(one(&[UNDEFINED, 6]), Err(Reason::FpUndefined));
    assert_eq!(one(&[EXPRESSION, 6, 3, 0x76, 0, 6]), Err(Reason::FpExpression));
    assert_eq!(
        one(&[REGISTER, 6, 17]),
        Ok(rule(
            Location::register(7, 8),
            Location::saved(-8),
            Some(Location::register(17, 0))
        ))
    );
    assert_eq!(one(&[REGISTER, 6, 33]), Err(Reason::FpRegister));
    assert_eq!(one(&[SAME_VALUE, 16]), Err(Reason::RaUnsaved));
    assert_eq!(one(&[VAL_EXPRESSION, 16, 1, 0x31]), Err(Reason::RaExpression));
    assert_eq!(one(&[REGISTER, 16, 33]), Err(Reason::RaRegister));
    assert_eq!(
        one(&[DEF_CFA_OFFSET, 0x80, 0x80, 0x80, 0x80, 8]),
        Err(Reason::WideOffset)
    );
    assert_eq!(one(&[0x3f]), Err(Reason::UnknownInstruction));
    assert_eq!(one(&[RESTORE_STATE]), Err(Reason::Damaged));
}

/// glibc's longjmp: SP, frame pointer and return address are in registers, and do not depend on the
/// CFA.
#[test]
fn another_stack_pointer_becomes_the_cfa() {
    let expected = rule(
        Location::register(8, 0),
        Location::register(1, 0),
        Some(Location::register(9, 0)),
    );
    assert_eq!(
        one(&[DEF_CFA, 5, 0, REGISTER, 7, 8, REGISTER, 6, 9, REGISTER, 16, 1]),
        Ok(expected)
    );
    // Offsets from the CFA become offsets from its register.
    let expected = rule(Location::register(8, 0), location(Base::Register(5), 16, true), None);
    assert_eq!(one(&[DEF_CFA, 5, 24, REGISTER, 7, 8]), Ok(expected));
    assert_eq!(one(&[UNDEFINED, 7]), Err(Reason::SpRule));
}

#[test]
fn linkage_tables_repeat() {
    let plt = [
        DEF_CFA_OFFSET,
        16,
        ADVANCE | 6,
        DEF_CFA_OFFSET,
        24,
        ADVANCE | 10,
        DEF_CFA_EXPRESSION,
        11,
        0x77,
        8,
        0x80,
        0,
        0x3f,
        0x1a,
        0x3b,
        0x2a,
        0x33,
        0x24,
        0x22,
    ];
    for (start, late, first) in [(0x1000, 11, (0, 8)), (0x1005, 6, (0, 8)), (0x100c, 15, (0, 16))] {
        let converted = x86().fde(start, 64, &plt).convert();
        assert!(converted.skipped.is_empty());
        let [head, blocks] = &converted.functions[..] else {
            panic!("{converted:?}");
        };
        assert_eq!(
            (head.start, head.size, head.repeat, head.rows.len()),
            (start, 16, None, 2)
        );
        assert_eq!((blocks.start, blocks.size, blocks.repeat), (start + 16, 48, Some(16)));
        let rows: Vec<_> = blocks
            .rows
            .iter()
            .map(|row| (row.start, row.rule.unwrap().cfa.offset))
            .collect();
        assert_eq!(rows[0], first);
        assert!(rows.contains(&(late, 16)), "{rows:?}");
        for offset in 0..48 {
            let row = blocks.rows.iter().rev().find(|row| row.start <= offset % 16).unwrap();
            let is_late = (start as u32 + offset) & 15 >= 11;
            assert_eq!(row.rule.unwrap().cfa.offset, if is_late { 16 } else { 8 });
        }
    }
}

#[test]
fn signal_trampolines() {
    let rules = [DEF_CFA_EXPRESSION, 4, 0x77, 0xa0, 1, 6, EXPRESSION, 6, 3, 0x77, 0xf8, 0];
    let more = [EXPRESSION, 7, 3, 0x77, 0xa0, 1, EXPRESSION, 16, 3, 0x77, 0xa8, 1];
    let converted = Section::new(&x86_64::ARCH, Endian::Little)
        .cie("zRS", 1, 0x78, &[])
        .fde(0x100f, 10, &[&rules[..], &more].concat())
        .convert();
    assert!(converted.functions[0].signal_frame);
    let word = |offset| location(Base::Register(7), offset, true);
    assert_eq!(rows(&converted), [(0, rule(word(160), word(168), Some(word(120))))]);
}

#[test]
fn aarch64_signs_return_addresses() {
    let function = [
        ADVANCE | 1,
        NEGATE_RA_STATE,
        ADVANCE | 1,
        DEF_CFA_OFFSET,
        32,
        OFFSET | 29,
        4,
        OFFSET | 30,
        3,
        ADVANCE | 2,
        REMEMBER,
        RESTORE | 30,
        RESTORE | 29,
        DEF_CFA_OFFSET,
        0,
        ADVANCE | 1,
        NEGATE_RA_STATE,
        ADVANCE | 1,
        RESTORE_STATE,
        ADVANCE | 1,
        UNDEFINED,
        30,
    ];
    for (augmentation, endian) in [
        ("zR", Endian::Little),
        ("zRB", Endian::Little),
        ("zRB", Endian::Big),
        ("zRBG", Endian::Big),
    ] {
        let converted = Section::new(&aarch64::ARCH, endian)
            .cie(augmentation, 4, 0x78, &[DEF_CFA, 31, 0])
            .fde(0x2000, 64, &function)
            .convert();
        assert_eq!(converted.skipped, []);
        assert_eq!(converted.functions[0].pauth_key_b, augmentation.contains('B'));
        let leaf = rule(Location::register(31, 0), Location::register(30, 0), None);
        let mangled = |rule: Option<Rule>| {
            rule.map(|rule| Rule {
                mangled_ra: true,
                ..rule
            })
        };
        let framed = mangled(rule(
            Location::register(31, 32),
            Location::saved(-24),
            Some(Location::saved(-32)),
        ));
        assert_eq!(
            rows(&converted),
            [
                (0, leaf),
                (4, mangled(leaf)),
                (8, framed),
                (16, mangled(leaf)),
                (20, leaf),
                (24, framed),
                (28, None),
            ]
        );
    }
}

/// An FDE points to its CIE, which need not be at an entry found by walking the section.
#[test]
fn a_cie_within_another_entry() {
    let hidden = [
        &[20, 0, 0, 0, 0, 0, 0, 0, 1][..],
        b"zR\0",
        &[1, 0x78, 16, 1, 0x1b, DEF_CFA, 7, 24, 0x90, 1, 0, 0],
    ];
    let mut section = x86();
    let at = section.bytes.len();
    section = section.fde(0x1000, 16, &[&[0x3f][..], &hidden.concat()].concat());
    section.cie = at + 18;
    let converted = section.fde(0x2000, 16, &[]).convert();
    assert_eq!(converted.skipped[0].reason, Reason::UnknownInstruction);
    assert_eq!(
        rows(&converted),
        [(0, rule(Location::register(7, 24), Location::saved(-8), None))]
    );
}

/// glibc's rawmemchr on AArch64: the return address is in x15, which is the column; no rule is
/// needed.
#[test]
fn another_column_for_the_return_address() {
    let converted = |column: u8, instructions: &[u8]| {
        let mut section = Section::new(&aarch64::ARCH, Endian::Little);
        let mut content = vec![0, 0, 0, 0, 1, b'z', b'R', 0, 4, 0x78, column, 1, 0x1b];
        content.extend([DEF_CFA, 31, 0]);
        section.entry(&content);
        section.fde(0x2000, 64, instructions).convert()
    };
    assert_eq!(
        rows(&converted(15, &[])),
        [(0, rule(Location::register(31, 0), Location::register(15, 0), None))]
    );
    assert_eq!(
        rows(&converted(15, &[OFFSET | 15, 1])),
        [(0, rule(Location::register(31, 0), Location::saved(-8), None))]
    );
    assert_eq!(rows(&converted(15, &[UNDEFINED, 15])), [(0, None)]);
    assert_eq!(converted(40, &[]).skipped[0].reason, Reason::ReturnColumn);
    // If the column is the frame pointer or the stack pointer, its rule restores that register too.
    assert_eq!(
        rows(&converted(29, &[OFFSET | 29, 1])),
        [(
            0,
            rule(
                Location::register(31, 0),
                Location::saved(-8),
                Some(Location::saved(-8))
            )
        )]
    );
    let saved_sp = location(Base::Register(31), -8, true);
    assert_eq!(
        rows(&converted(31, &[OFFSET | 31, 1])),
        [(0, rule(saved_sp, saved_sp, None))]
    );
}

#[test]
fn s390x_keeps_its_stack_pointer_with_the_others() {
    let function = [
        ADVANCE | 6,
        OFFSET | 11,
        9,
        OFFSET | 14,
        6,
        OFFSET | 15,
        5,
        ADVANCE | 4,
        DEF_CFA_OFFSET,
        0xc0,
        2,
        ADVANCE | 4,
        REGISTER,
        14,
        16,
    ];
    let converted = Section::new(&s390x::ARCH, Endian::Big)
        .cie("zR", 1, 0x78, &[DEF_CFA, 15, 0xa0, 1])
        .fde(0x3000, 32, &function)
        .convert();
    assert_eq!(converted.skipped, []);
    assert_eq!(
        rows(&converted),
        [
            (0, rule(Location::register(15, 160), Location::register(14, 0), None)),
            (
                6,
                rule(
                    Location::register(15, 160),
                    Location::saved(-48),
                    Some(Location::saved(-72))
                )
            ),
            (
                10,
                rule(
                    Location::register(15, 320),
                    Location::saved(-48),
                    Some(Location::saved(-72))
                )
            ),
            (
                14,
                rule(
                    Location::register(15, 320),
                    Location::register(16, 0),
                    Some(Location::saved(-72))
                )
            ),
        ]
    );
}

#[test]
fn entries_that_describe_no_code() {
    let converted = x86()
        .fde(0, 16, &[])
        .fde(0x1000, 0, &[])
        .fde(0x8fff, 2, &[])
        .fde(0x2000, 8, &[])
        .fde(0x2000, 8, &[DEF_CFA_OFFSET, 16])
        .convert();
    let skipped = |start, reason| Skipped { start, size: 0, reason };
    assert_eq!(
        converted.skipped,
        [
            skipped(0, Reason::OutsideCode),
            skipped(0x1000, Reason::Empty),
            skipped(0x2000, Reason::Overlap),
            skipped(0x8fff, Reason::OutsideCode),
        ]
    );
    assert_eq!(
        rows(&converted),
        [(0, rule(Location::register(7, 8), Location::saved(-8), None))]
    );
    assert_eq!(converted.uncovered_bytes(), 0);
}

#[test]
fn damage_ends_the_section_and_says_where() {
    let mut section = x86().fde(0x1000, 16, &[]);
    // A terminator inside the section is skipped.
    section.bytes.extend([0; 4]);
    section = section.fde(0x2000, 16, &[]);
    let end = section.bytes.len() as u64;
    section.bytes.extend([200, 0, 0, 0, 1, 0, 0, 0]);
    let converted = section.convert();
    assert_eq!(converted.functions.len(), 2);
    let damage = converted.damage.unwrap();
    assert_eq!((damage.kind, damage.offset), (ErrorKind::EntryLength(200), end));
    section.bytes.truncate(end as usize);
    section.bytes.extend([1, 2]);
    let damage = section.convert().damage.unwrap();
    assert_eq!((damage.kind, damage.offset), (ErrorKind::Truncated, end));
    // An FDE whose CIE is not a CIE.
    let mut section = x86().fde(0x1000, 16, &[]);
    section.cie += 4;
    let converted = section.fde(0x2000, 16, &[]).convert();
    assert_eq!(converted.functions.len(), 1);
    assert_eq!(converted.skipped[0].reason, Reason::Damaged);
}
