//! Names from every source but ELF files, which have tests of their own.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::invented::Invented;
use super::jitdump::tests::MadeUp;
use super::*;

fn module(pid: u32, base: u64, path: &str, position_independent: bool) -> Module {
    Module {
        time: 0,
        pid,
        base,
        size: 0x10_000,
        mapped: None,
        position_independent,
        path: path.into(),
        build_id: Vec::new(),
        elsewhere: 0,
    }
}

struct Setting {
    symbolizer: Symbolizer,
    lookups: Arc<AtomicUsize>,
    folder: tempfile::TempDir,
}

impl Setting {
    fn new(kallsyms: &str) -> Setting {
        let folder = tempfile::tempdir().unwrap();
        let lookups = Arc::new(AtomicUsize::new(0));
        let system = SystemFiles {
            perf_maps: folder.path().into(),
            kallsyms: folder.path().join("kallsyms"),
        };
        fs::write(&system.kallsyms, kallsyms).unwrap();
        let source = Invented::default()
            .with_file(
                "/good",
                0x1000,
                &[(0x1000, "f10"), (0x1100, "f11"), (0x1200, "f12"), (0x1300, "")],
            )
            .with_file(
                "/padded",
                0x1000,
                &[
                    (0x1000, "before"),
                    (0x1010, "int3"),
                    (0x1040, "after"),
                    (0x1100, "?"),
                    (0x1140, "next"),
                ],
            )
            .with_file("/stripped", 0x1000, &[(0x1100, "?"), (0x1200, "")])
            .counting(&lookups);
        Setting {
            symbolizer: Symbolizer::with_source(Box::new(source), system),
            lookups,
            folder,
        }
    }

    /// Module and innermost function.
    fn name(&mut self, pid: u32, kind: FrameKind, address: u64) -> (String, String) {
        let id = self.symbolizer.resolve(pid, kind, address);
        let location = self.symbolizer.location(id);
        (location.module.clone(), location.calls[0].function.clone())
    }
}

fn pair(module: &str, function: &str) -> (String, String) {
    (module.to_string(), function.to_string())
}

#[test]
fn return_addresses_are_looked_up_one_byte_before() {
    let mut setting = Setting::new("");
    setting.symbolizer.map(&module(1, 0x70_0000, "/good", true));
    assert_eq!(setting.name(1, FrameKind::Pc, 0x70_0100), pair("good", "f11"));
    assert_eq!(setting.name(1, FrameKind::Ra, 0x70_0100), pair("good", "f10"));
}

/// V8 puts the start of a function into a frame as its return address.
#[test]
fn a_return_address_behind_padding_has_the_name_of_its_function() {
    let mut setting = Setting::new("");
    setting.symbolizer.map(&module(1, 0x70_0000, "/padded", true));
    assert_eq!(setting.name(1, FrameKind::Ra, 0x70_0040), pair("padded", "after"));
    assert_eq!(
        setting.name(1, FrameKind::Ra, 0x70_0030),
        pair("padded", "padded+0x102f")
    );
    // The last call of a function without a name does not return.
    assert_eq!(
        setting.name(1, FrameKind::Ra, 0x70_0140),
        pair("padded", "padded+0x1100")
    );
}

#[test]
fn each_place_of_a_file_is_looked_up_once() {
    let mut setting = Setting::new("");
    for pid in 1..=3 {
        setting
            .symbolizer
            .map(&module(pid, 0x10_0000 * u64::from(pid), "/good", true));
    }
    for pid in [1, 2, 3, 1] {
        let address = 0x10_0000 * u64::from(pid) + 0x234;
        assert_eq!(setting.name(pid, FrameKind::Pc, address), pair("good", "f12"));
    }
    assert_eq!(setting.lookups.load(Ordering::Relaxed), 1);
}

#[test]
fn files_are_closed_and_read_again() {
    for most in [(1, u64::MAX), (9, 999)] {
        let (files, bytes) = most;
        let mut setting = Setting::new("");
        setting.symbolizer.keep_symbols_of(Kept { files, bytes });
        setting.symbolizer.map(&module(1, 0x70_0000, "/good", true));
        setting.symbolizer.map(&module(1, 0x80_0000, "/stripped", true));
        for (at, expected) in [
            (0x70_0010, pair("good", "f10")),
            (0x80_0110, pair("stripped", "stripped+0x1100")),
            (0x70_0110, pair("good", "f11")),
            (0x80_0120, pair("stripped", "stripped+0x1100")),
            (0x70_0210, pair("good", "f12")),
        ] {
            assert_eq!(setting.name(1, FrameKind::Pc, at), expected);
            assert_eq!(setting.symbolizer.files.iter().flatten().count(), 1, "{most:?}");
        }
    }
}

#[test]
fn fixed_position_files_are_asked_for_the_address_itself() {
    let mut setting = Setting::new("");
    setting.symbolizer.map(&module(1, 0x1000, "/good", false));
    assert_eq!(setting.name(1, FrameKind::Pc, 0x1234), pair("good", "f12"));
}

#[test]
fn a_function_without_a_name_is_called_after_its_start() {
    let mut setting = Setting::new("");
    setting.symbolizer.map(&module(1, 0x60_0000, "/stripped", true));
    let mut place = |address| {
        let id = setting.symbolizer.resolve(1, FrameKind::Pc, address);
        let call = &setting.symbolizer.location(id).calls[0];
        (call.function.clone(), call.offset)
    };
    assert_eq!(place(0x60_0135), ("stripped+0x1100".to_string(), Some(0x35)));
    assert_eq!(place(0x60_013f), ("stripped+0x1100".to_string(), Some(0x3f)));
    assert_eq!(place(0x60_0200), ("stripped+0x1200".to_string(), None));
}

/// V8 maps its functions a second time, from a fixed-position file too.
#[test]
fn a_piece_of_a_file_counts_from_its_own_base() {
    let mut setting = Setting::new("");
    setting.symbolizer.map(&module(1, 0x1000, "/good", false));
    let mut piece = module(1, 0x7f00_0000, "/good", true);
    piece.mapped = Some(0x7f00_0200..0x7f00_0300);
    setting.symbolizer.map(&piece);
    assert_eq!(setting.name(1, FrameKind::Pc, 0x1210), pair("good", "f12"));
    assert_eq!(setting.name(1, FrameKind::Pc, 0x7f00_0210), pair("good", "f12"));
    assert_eq!(
        setting.name(1, FrameKind::Pc, 0x7f00_0110),
        pair("[anon]", "[unknown]+0x7f000110")
    );
}

#[test]
fn what_has_no_name_is_an_offset() {
    let mut setting = Setting::new("");
    setting.symbolizer.map(&module(1, 0x70_0000, "/good", true));
    setting.symbolizer.map(&module(1, 0x80_0000, "/lib/gone.so", true));
    setting.symbolizer.map(&module(1, 0x90_0000, "[heap]", true));
    // If the file is available, the offset is the one that addr2line takes.
    assert_eq!(setting.name(1, FrameKind::Pc, 0x70_2345), pair("good", "good+0x3345"));
    assert_eq!(
        setting.name(1, FrameKind::Pc, 0x80_0042),
        pair("gone.so", "gone.so+0x42")
    );
    assert_eq!(setting.name(1, FrameKind::Pc, 0x90_0010), pair("[heap]", "[heap]+0x10"));
    assert_eq!(setting.name(1, FrameKind::Pc, 0xbad), pair("[anon]", "[unknown]+0xbad"));
    assert_eq!(setting.name(1, FrameKind::Ra, 0), pair("[anon]", "[unknown]+0x0"));
    assert_eq!(
        setting.symbolizer.notes()[0],
        "not found, so shown as module+offset: /lib/gone.so"
    );
}

#[test]
fn code_made_at_run_time_is_named_by_the_perf_map() {
    let mut setting = Setting::new("");
    fs::write(
        setting.folder.path().join("perf-7.map"),
        "500000 100 Main.run()\n90000 10 stub\n",
    )
    .unwrap();
    setting
        .symbolizer
        .map(&module(7, 0x9_0000, "/memfd:jit (deleted)", true));
    assert_eq!(setting.name(7, FrameKind::Ra, 0x50_0010), pair("[jit]", "Main.run()"));
    assert_eq!(setting.name(7, FrameKind::Pc, 0x9_0004), pair("[jit]", "stub"));
    assert_eq!(
        setting.name(7, FrameKind::Pc, 0x9_0014),
        pair("memfd:jit", "memfd:jit+0x14")
    );
    assert_eq!(
        setting.name(8, FrameKind::Pc, 0x50_0010),
        pair("[anon]", "[unknown]+0x500010")
    );
}

#[test]
fn the_kernel_is_named_where_it_tells_addresses() {
    let mut setting =
        Setting::new("ffffffff81000000 T _text\nffffffff81000100 T do_idle\nffffffffc0000000 t ext4_sync_fs\t[ext4]\n");
    assert_eq!(
        setting.name(0, FrameKind::Pc, 0xffff_ffff_8100_0108),
        pair("[kernel]", "do_idle")
    );
    assert_eq!(
        setting.name(5, FrameKind::Pc, 0xffff_ffff_c000_0001),
        pair("[ext4]", "ext4_sync_fs")
    );
    assert!(setting.symbolizer.notes().is_empty());
}

#[test]
fn a_hidden_kernel_table_is_noted() {
    let mut setting = Setting::new("0000000000000000 T _text\n");
    setting
        .symbolizer
        .map(&module(u32::MAX, 0xffff_ffff_c000_0000, "[ext4]", true));
    assert_eq!(
        setting.name(0, FrameKind::Pc, 0xffff_ffff_8100_0108),
        pair("[kernel]", "[kernel]+0xffffffff81000108")
    );
    assert_eq!(
        setting.name(0, FrameKind::Pc, 0xffff_ffff_c000_0020),
        pair("[ext4]", "[ext4]+0x20")
    );
    assert_eq!(setting.symbolizer.notes().len(), 1);
}

/// What a walk that has lost its way meets.
#[test]
fn garbage_is_not_the_kernels() {
    for kallsyms in ["", "ffffffff81000000 T _text\nffffffff81000100 T do_idle\n"] {
        let mut setting = Setting::new(kallsyms);
        assert_eq!(
            setting.name(5, FrameKind::Pc, 0xd1e4_0000_8100_0108),
            pair("[anon]", "[unknown]+0xd1e4000081000108")
        );
        let id = setting
            .symbolizer
            .resolve_outside_kernel(5, FrameKind::Ra, 0xffff_ffff_8100_0108);
        let call = &setting.symbolizer.location(id).calls[0];
        assert_eq!(call.function, "[unknown]+0xffffffff81000107");
    }
}

/// A function that is compiled anew has its name from then on.
#[test]
fn code_made_at_run_time_is_named_by_the_jitdump_of_its_time() {
    let mut setting = Setting::new("");
    let dump = MadeUp::new(7, 0)
        .load(100, 0x5000, 0x40, 1, "_ZN4slow3runEv")
        .load(200, 0x5000, 0x80, 2, "fast");
    let path = setting.folder.path().join("jit-7.dump");
    fs::write(&path, dump.0).unwrap();
    setting.symbolizer.advance(7, 50);
    setting
        .symbolizer
        .map(&module(7, 0x9_0000, path.to_str().unwrap(), true));
    assert_eq!(
        setting.name(7, FrameKind::Pc, 0x5010),
        pair("[anon]", "[unknown]+0x5010")
    );
    assert!(setting.symbolizer.advance(7, 150));
    assert_eq!(setting.name(7, FrameKind::Pc, 0x5010), pair("[jit]", "slow::run()"));
    assert!(setting.symbolizer.advance(7, 250));
    assert!(!setting.symbolizer.advance(7, 260));
    assert_eq!(setting.name(7, FrameKind::Pc, 0x5010), pair("[jit]", "fast"));
    // A process that shares its code knows where it has the names from; others don't.
    assert_eq!(
        setting.name(8, FrameKind::Pc, 0x5010),
        pair("[anon]", "[unknown]+0x5010")
    );
    // Who has but one time gets the last names.
    let mut setting = Setting::new("");
    let dump = MadeUp::new(7, 0).load(100, 0x5000, 0x40, 1, "late");
    fs::write(setting.folder.path().join("jit-7.dump"), &dump.0).unwrap();
    fs::write(setting.folder.path().join("jit-9.dump"), &dump.0).unwrap();
    assert_eq!(setting.name(7, FrameKind::Pc, 0x5010), pair("[jit]", "late"));
    assert_eq!(
        setting.name(9, FrameKind::Pc, 0x5010),
        pair("[anon]", "[unknown]+0x5010"),
        "another process's"
    );
}

#[test]
fn a_kernel_of_another_boot_gets_no_false_names() {
    let mut setting = Setting::new("ffffffff81000000 T _text\nffffffff81000100 T do_idle\n");
    let mut kernel = module(u32::MAX, 0xffff_ffff_8000_0000, "[kernel.kallsyms]_text", true);
    kernel.size = 0x200_0000;
    setting.symbolizer.map(&kernel);
    assert_eq!(
        setting.name(0, FrameKind::Pc, 0xffff_ffff_8100_0108),
        pair("[kernel]", "[kernel]+0x1000108")
    );
    assert!(setting.symbolizer.notes()[0].contains("not loaded where"));
}
