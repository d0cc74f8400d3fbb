//! Properties of dicts built by hand that no other tool shows: ids and names across dicts, and
//! their errors.

use crate::common;

use backtrail_ctype::{
    AlignmentRule, Archive, Dict, ErrorKind, Kind, Measures, Surroundings, Symbol, SymbolKind, TypeId, Types,
};
use common::{Body, Maker, archive, every_kind};

/// A child of each version; the bit that marks its own ids differs.
fn child(version: u8, big: bool) -> Vec<u8> {
    let own = if version < 3 { 0x8000 } else { 0x8000_0000 };
    let mut maker = Maker::new(version, big);
    maker.parent = Some(".ctf");
    maker.add(
        6,
        "mine",
        &Body::Struct(24, vec![("a", 0, 3), ("b", 64, own | 2), ("c", 128, 1)]),
    );
    maker.add(3, "", &Body::Refers(own | 1));
    maker.add(10, "theirs", &Body::Refers(8));
    maker.variables.push(("v", own | 3));
    maker.finish()
}

#[test]
fn children_of_every_version() {
    for version in [1, 2, 3, 4] {
        for big in [false, true] {
            let members = [
                (".ctf", every_kind(version, big).finish()),
                ("unit.c", child(version, big)),
            ];
            let section = archive(&members);
            let archive = Archive::parse(&section).unwrap();
            let dict = archive.find(b"unit.c").unwrap().open(Surroundings::default()).unwrap();
            let parent = archive.parent_of(&dict).unwrap().unwrap();
            let parent = parent.open(Surroundings::default()).unwrap();
            let types = Types::with_parent(&dict, Some(&parent));
            let ids: Vec<u32> = dict.ids().map(|id| id.0).collect();
            assert_eq!(ids, [0x8000_0001, 0x8000_0002, 0x8000_0003], "version {version}");
            let mine = types.get(TypeId(ids[0])).unwrap();
            let members: Vec<_> = mine.members().unwrap().map(|member| member.unwrap()).collect();
            let seen: Vec<_> = members
                .iter()
                .map(|member| (member.name, member.offset, member.id.0))
                .collect();
            assert_eq!(seen, [(&b"a"[..], 0, 3), (b"b", 64, ids[1]), (b"c", 128, 1)]);
            assert_eq!(types.get(members[0].id).unwrap().kind(), Kind::Pointer);
            assert_eq!(types.resolve(TypeId(ids[2])).unwrap().name().unwrap(), b"small");
            assert_eq!(dict.variables().next().unwrap().unwrap(), (&b"v"[..], TypeId(ids[2])));
            let mut measures = Measures::new(types, AlignmentRule::StrictestMember);
            assert_eq!(
                (measures.size(TypeId(ids[2])), measures.alignment(TypeId(ids[0]))),
                (Ok(16), Ok(8))
            );

            // Alone, it reports that its parent is missing; and a child can't be a parent.
            assert_eq!(dict.types().get(TypeId(3)).unwrap_err().kind, ErrorKind::NoParent(3));
            let wrong = Types::with_parent(&dict, Some(&dict));
            assert_eq!(wrong.get(TypeId(3)).unwrap_err().kind, ErrorKind::NoParent(3));
            assert_eq!(types.get(TypeId(0x8000_0009)).unwrap_err().kind, ErrorKind::TypeId(9));
            assert_eq!(
                parent.types().get(TypeId(ids[0])).unwrap_err().kind,
                ErrorKind::TypeId(ids[0])
            );
        }
    }
}

#[test]
fn labels_and_external_strings() {
    for big in [false, true] {
        let mut maker = every_kind(4, big);
        maker.labels.extend([("up_to_here", 12), ("and_here", 20)]);
        let section = maker.finish();
        let dict = Dict::open(&section, Surroundings::default()).unwrap();
        let labels: Vec<_> = dict.labels().map(|label| label.unwrap()).collect();
        assert_eq!(labels, [(&b"up_to_here"[..], TypeId(12)), (b"and_here", TypeId(20))]);

        // The first variable's name is in the external table.
        let mut section = every_kind(4, big).finish();
        let word = |at: usize| <[u8; 4]>::try_from(&section[at..at + 4]).unwrap();
        let variables = if big {
            u32::from_be_bytes(word(36))
        } else {
            u32::from_le_bytes(word(36))
        };
        let reference = 0x8000_0003_u32;
        let bytes = if big {
            reference.to_be_bytes()
        } else {
            reference.to_le_bytes()
        };
        let at = 52 + variables as usize;
        section[at..at + 4].copy_from_slice(&bytes);
        let name = |strings: &'static [u8]| {
            let dict = Dict::open(
                &section,
                Surroundings {
                    strings,
                    ..Surroundings::default()
                },
            )
            .unwrap();
            dict.variables().next().unwrap().map(|(name, _)| name.to_vec())
        };
        assert_eq!(name(b"\0ab\0outside\0").unwrap(), b"");
        assert_eq!(name(b"\0a\0outside\0").unwrap(), b"outside");
        // Past the table's end, and unterminated.
        for strings in [&b""[..], b"\0a\0outside"] {
            let error = name(strings).unwrap_err();
            assert_eq!(error.kind, ErrorKind::Name(reference));
            assert!(
                error.to_string().contains("no string at 0x3 of the external table"),
                "{error}"
            );
        }
    }
}

#[test]
fn symbols_by_place_and_by_name() {
    let mut maker = every_kind(4, false);
    maker.symbols = [vec![(None, 8), (None, 0), (None, 1)], vec![(None, 6)]];
    let section = maker.finish();
    let dict = Dict::open(&section, Surroundings::default()).unwrap();
    let symbol = |name, kind| Symbol { name, kind };
    let symbols = [
        symbol(&b"first"[..], SymbolKind::Object),
        symbol(b"f", SymbolKind::Function),
        symbol(b"of_no_type", SymbolKind::Object),
        symbol(b"third", SymbolKind::Object),
        symbol(b"behind_the_table", SymbolKind::Object),
    ];
    let typed = |kind| -> Vec<_> {
        dict.symbol_types(kind, &symbols)
            .map(|symbol| symbol.unwrap())
            .collect()
    };
    assert_eq!(
        typed(SymbolKind::Object),
        [(&b"first"[..], TypeId(8)), (b"third", TypeId(1))]
    );
    assert_eq!(typed(SymbolKind::Function), [(&b"f"[..], TypeId(6))]);
    assert_eq!(dict.symbol_types(SymbolKind::Object, &[]).count(), 0);

    // Without the flag, the function section has another layout.
    let mut old = section.clone();
    old[3] = 0;
    let old = Dict::open(&old, Surroundings::default()).unwrap();
    assert_eq!(old.symbol_types(SymbolKind::Function, &symbols).count(), 0);

    let counted = |name, undefined, absolute, value| {
        Symbol::counted(name, SymbolKind::Object, undefined, absolute, value).is_some()
    };
    assert!(counted(b"x", false, false, 0) && counted(b"x", false, true, 1));
    assert!(!counted(b"x", true, false, 0) && !counted(b"x", false, true, 0));
    assert!(!counted(b"", false, false, 0) && !counted(b"_GLOBAL_OFFSET_TABLE_", false, false, 0));
}

/// The caller that opens a dict determines the size of pointers, as for 32-bit machines.
#[test]
fn pointers_of_four_bytes() {
    let mut maker = Maker::new(4, true);
    maker.add(1, "int", &Body::Number(4, 1 << 24 | 32));
    maker.add(3, "", &Body::Refers(1));
    maker.add(6, "pair", &Body::Struct(8, vec![("p", 0, 2), ("i", 32, 1)]));
    let section = maker.finish();
    let surroundings = Surroundings {
        pointer: 4,
        ..Surroundings::default()
    };
    let dict = Dict::open(&section, surroundings).unwrap();
    let mut measures = Measures::new(dict.types(), AlignmentRule::StrictestMember);
    assert_eq!(
        (measures.size(TypeId(2)), measures.alignment(TypeId(3))),
        (Ok(4), Ok(4))
    );
}
