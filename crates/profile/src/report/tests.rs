//! Whole reports from hand-made items, compared with what they should say to the letter.

use backtrail_recording::{Detail, Frame, FrameKind, Item, Module, Sample, Stop, ThreadName};

use super::{Report, TableOptions};
use crate::profile::{Options, Profile};
use crate::symbolize::{Symbolizer, SystemFiles, invented::Invented};

const BASE: u64 = 0x5000_0000;
const KERNEL: u64 = 0xffff_ffff_8100_0000;

fn module(pid: u32, base: u64, path: &str) -> Item<'static> {
    Item::Module(Module {
        time: 0,
        pid,
        base,
        size: 0x1_0000,
        mapped: None,
        position_independent: true,
        path: path.into(),
        build_id: Vec::new(),
        elsewhere: 0,
    })
}

fn name(pid: u32, tid: u32, name: &str) -> Item<'static> {
    Item::ThreadName(ThreadName {
        time: 0,
        pid,
        tid,
        name: name.into(),
    })
}

/// A leaf and the return addresses above it.
fn frames(addresses: &[u64]) -> Vec<Frame> {
    let kind = |index| if index == 0 { FrameKind::Pc } else { FrameKind::Ra };
    addresses
        .iter()
        .enumerate()
        .map(|(index, &address)| Frame {
            kind: kind(index),
            address,
        })
        .collect()
}

pub(super) struct Recording {
    pub(super) profile: Profile,
    time: u64,
    live: bool,
    _folder: tempfile::TempDir,
}

impl Recording {
    pub(super) fn new(options: Options) -> Recording {
        let folder = tempfile::tempdir().unwrap();
        let system = SystemFiles {
            perf_maps: folder.path().into(),
            kallsyms: folder.path().join("kallsyms"),
        };
        let kernel = "ffffffff81000000 T _text\nffffffff81000100 T do_syscall_64\nffffffff81000200 T vfs_read\n";
        std::fs::write(&system.kallsyms, kernel).unwrap();
        let source = Invented::default()
            .with_file(
                "/opt/app/bin/server",
                0,
                &[
                    (0x1000, "_start"),
                    (0x1100, "main"),
                    (0x1200, "parse<[u8; 8]>"),
                    (0x1300, "hash < mix < update"),
                    (0x1400, "fib@src/fib.c"),
                    (0x1500, "worker 7"),
                    (0x1600, ""),
                ],
            )
            .with_file("/bin/other", 0, &[(0x1000, "_start"), (0x1100, "main")]);
        let symbolizer = Symbolizer::with_source(Box::new(source), system);
        let mut recording = Recording {
            profile: Profile::with_symbolizer(options, symbolizer),
            time: 1_000_000_000,
            live: false,
            _folder: folder,
        };
        recording.add(module(10, BASE, "/opt/app/bin/server"));
        recording.add(name(10, 10, "server"));
        recording.add(name(10, 11, "pool"));
        recording
    }

    fn add(&mut self, item: Item<'_>) {
        self.profile.add(&item);
    }

    fn sample(&mut self, tid: u32, frames: &[Frame], stop: Option<Stop>) {
        self.time += 10_000_000;
        self.profile.add(&Item::Sample(Sample {
            time: self.time,
            cpu: 0,
            pid: 10,
            tid,
            frames,
            stop,
            live: self.live,
            in_kernel: false,
            wait: None,
            passed: &[],
            detail: Detail::Nothing,
        }));
    }

    /// A complete stack of thread 10, the leaf first.
    pub(super) fn stack(&mut self, addresses: &[u64]) {
        self.sample(10, &frames(addresses), Some(Stop::EndOfStack));
    }
}

const START: u64 = BASE + 0x1010;
const MAIN: u64 = BASE + 0x1110;
const PARSE: u64 = BASE + 0x1210;
const UPDATE: u64 = BASE + 0x1310;
pub(super) const FIB: u64 = BASE + 0x1410;
const WORKER: u64 = BASE + 0x1510;

/// One of everything.
pub(super) fn recorded() -> Report {
    let mut recording = Recording::new(Options::default());
    for _ in 0..5 {
        recording.stack(&[PARSE, MAIN, START]);
    }
    recording.stack(&[UPDATE, PARSE, MAIN, START]);
    recording.stack(&[FIB, FIB, FIB + 8, FIB, MAIN, START]);
    recording.stack(&[KERNEL + 0x208, KERNEL + 0x110, PARSE, MAIN, START]);
    recording.sample(11, &frames(&[WORKER, MAIN]), Some(Stop::NoTable));
    recording.sample(10, &frames(&[PARSE]), None);
    let mut long = frames(&[FIB, FIB, START]);
    long.insert(
        2,
        Frame {
            kind: FrameKind::Omitted,
            address: 4_000,
        },
    );
    recording.sample(10, &long, Some(Stop::EndOfStack));
    recording.sample(10, &frames(&[0x7000, BASE + 0x1700]), Some(Stop::NoModule));
    recording.add(Item::Lost { time: 0, count: 3 });
    recording.add(Item::Lost { time: 0, count: 4 });
    recording.profile.finish(2_048)
}

pub(super) fn text(write: impl FnOnce(&mut dyn std::io::Write) -> std::io::Result<()>) -> String {
    let mut out = Vec::new();
    write(&mut out).unwrap();
    String::from_utf8(out).unwrap()
}

fn folded(report: &Report) -> String {
    text(|out| report.write_folded(out))
}

fn folded_of(recording: Recording) -> String {
    folded(&recording.profile.finish(0))
}

/// Self and total of the functions with this name.
fn counts(report: &Report, name: &str) -> (u64, u64) {
    let found: Vec<_> = report
        .functions()
        .iter()
        .filter(|function| function.name == name)
        .collect();
    assert_eq!(found.len(), 1, "{name}");
    (found[0].samples, found[0].total)
}

#[test]
fn folded_stacks_to_the_letter() {
    assert_eq!(
        folded(&recorded()),
        "server;[incomplete: no_module];server+0x16ff;[unknown]+0x7000 1\n\
         server;[incomplete: no_table];main;worker_7 1\n\
         server;[stack lost];parse<[u8: 8]> 1\n\
         server;_start;[frames omitted];fib;fib 1\n\
         server;_start;main;fib;fib;fib;fib 1\n\
         server;_start;main;parse<[u8: 8]> 5\n\
         server;_start;main;parse<[u8: 8]>;do_syscall_64;vfs_read 1\n\
         server;_start;main;parse<[u8: 8]>;update;mix;hash 1\n"
    );
}

#[test]
fn table_to_the_letter() {
    let report = recorded();
    let expected = "\
12 samples over 0.11 s, 7 lost, 75.0 % complete, 38 frames, 2.0 KiB of trace
stops: stack_lost 1, end_of_stack 9, no_module 1, no_table 1
processes: server 12
note: 8.3 % of the samples ran code that is in no file and has no name; code that a program makes at
  run time has names if the program writes a perf map or a jitdump

 self %  total %  function          module
  50.00    66.67  parse<[u8; 8]>    server
  16.67    16.67  fib               server
   8.33     8.33  [unknown]+0x7000  [anon]
   8.33     8.33  hash              server
   8.33     8.33  vfs_read          [kernel]
   8.33     8.33  worker 7          server
   0.00    75.00  _start            server
   0.00    75.00  main              server
   0.00     8.33  do_syscall_64     [kernel]
   0.00     8.33  mix               server
   0.00     8.33  server+0x16ff     server
   0.00     8.33  update            server
";
    let table = text(|out| report.write_table(out, &TableOptions::default()));
    assert_eq!(table, expected);
}

/// Samples of which frames were read later are a class of their own everywhere.
#[test]
fn what_was_read_late_and_why_stacks_end_is_shown_in_every_form() {
    let mut recording = Recording::new(Options::default());
    for _ in 0..6 {
        recording.stack(&[PARSE, MAIN, START]);
    }
    recording.sample(10, &frames(&[PARSE, MAIN]), Some(Stop::Unreadable));
    recording.live = true;
    for _ in 0..2 {
        recording.stack(&[PARSE, MAIN, START]);
    }
    recording.sample(10, &frames(&[PARSE, MAIN]), Some(Stop::Limit));
    let report = recording.profile.finish(0);
    assert_eq!(
        folded(&report),
        "server;[incomplete: unreadable];main;parse<[u8: 8]> 1\n\
         server;[read late];[incomplete: limit];main;parse<[u8: 8]> 1\n\
         server;[read late];_start;main;parse<[u8: 8]> 2\n\
         server;_start;main;parse<[u8: 8]> 6\n"
    );
    let table = text(|out| report.write_table(out, &TableOptions::default()));
    let late = "read late: 3 samples, 30.0 %: their outer frames were read from the running process after the sample";
    assert!(table.replace("\n  ", " ").contains(late), "{table}");
    let graph = text(|out| report.write_flame_graph(out, "title"));
    let subtitle = "10 samples, 80.0 % complete stacks, 30.0 % read late, 10.0 % unreadable, 10.0 % limit";
    assert!(graph.contains(subtitle), "{graph}");
    assert!(graph.contains("[read late]"));
    let json: serde_json::Value = serde_json::from_str(&text(|out| report.write_json(out))).unwrap();
    assert_eq!((&json["live"], &json["stops"]["limit"]), (&3.into(), &1.into()));
}

/// What the line below the title has no room for is one share.
#[test]
fn a_flame_graph_names_the_most_frequent_reasons() {
    let mut recording = Recording::new(Options::default());
    let reasons: Vec<Stop> = Stop::ALL.into_iter().filter(|stop| *stop != Stop::EndOfStack).collect();
    for (index, stop) in reasons.iter().enumerate() {
        for _ in 0..=index {
            recording.sample(10, &frames(&[PARSE]), Some(*stop));
        }
    }
    let report = recording.profile.finish(0);
    let graph = text(|out| report.write_flame_graph(out, "title"));
    let subtitle = graph
        .lines()
        .find(|line| line.contains("% complete stacks"))
        .expect("it is there");
    let named: Vec<bool> = reasons
        .iter()
        .map(|stop| subtitle.contains(&format!("% {}", stop.name())))
        .collect();
    assert_eq!(named.iter().filter(|named| **named).count(), 5, "{subtitle}");
    assert!(named[named.len() - 1] && !named[0], "{subtitle}");
    assert!(subtitle.contains("% otherwise incomplete"), "{subtitle}");
}

/// Every reason that a recorder knows is shown.
#[test]
fn each_stop_has_its_frame() {
    for stop in Stop::ALL {
        let mut recording = Recording::new(Options::default());
        recording.sample(10, &frames(&[PARSE]), Some(stop));
        let report = recording.profile.finish(0);
        let marked = folded(&report).contains(&format!("[incomplete: {}]", stop.name()));
        assert_eq!(
            marked,
            !matches!(stop, Stop::EndOfStack | Stop::NoUserStack),
            "{stop:?}"
        );
        assert_eq!(report.summary().stops, [(stop.name(), 1)]);
        assert_eq!(report.summary().incomplete().is_empty(), stop == Stop::EndOfStack);
    }
}

/// A kernel address further out than a user frame is not kernel code: the kernel does not return
/// there.
#[test]
fn only_the_innermost_frames_are_the_kernels() {
    let mut recording = Recording::new(Options::default());
    let garbage = [KERNEL + 0x208, PARSE, KERNEL + 0x110, u64::MAX];
    recording.sample(10, &frames(&garbage), Some(Stop::NoModule));
    assert_eq!(
        folded_of(recording),
        "server;[incomplete: no_module];[unknown]+0xfffffffffffffffe;[unknown]+0xffffffff8100010f;parse<[u8: 8]>;vfs_read 1\n"
    );
}

#[test]
fn a_limited_table_counts_what_it_leaves_out() {
    let options = TableOptions {
        width: Some(80),
        limit: Some(2),
        ..TableOptions::default()
    };
    let table = text(|out| recorded().write_table(out, &options));
    let tail: Vec<&str> = table.lines().skip_while(|line| !line.starts_with(" self")).collect();
    assert_eq!(
        tail,
        [
            " self %  total %  function        module",
            "  50.00    66.67  parse<[u8; 8]>  server",
            "  16.67    16.67  fib             server",
            "  33.33           10 more",
        ]
    );
}

#[test]
fn json_to_the_letter() {
    let mut recording = Recording::new(Options::default());
    recording.stack(&[PARSE, MAIN, START]);
    recording.sample(10, &frames(&[MAIN, START]), Some(Stop::Unreadable));
    let json = text(|out| recording.profile.finish(99).write_json(out));
    assert_eq!(
        json,
        r#"{
  "samples": 2,
  "lost": 0,
  "complete": 0.5,
  "stops": {
    "end_of_stack": 1,
    "unreadable": 1
  },
  "frames": 5,
  "trace_bytes": 99,
  "live": 0,
  "processes": {
    "server": 2
  },
  "functions": [
    {
      "name": "main",
      "self": 1,
      "total": 2,
      "module": "server"
    },
    {
      "name": "parse<[u8; 8]>",
      "self": 1,
      "total": 1,
      "module": "server"
    },
    {
      "name": "_start",
      "self": 0,
      "total": 2,
      "module": "server"
    }
  ],
  "notes": []
}
"#
    );
}

#[test]
fn stops_add_up_to_the_samples() {
    let report = recorded();
    let summary = report.summary();
    let stopped: u64 = summary.stops.iter().map(|(_, count)| count).sum();
    assert_eq!(stopped, summary.samples);
    let own: u64 = report.functions().iter().map(|function| function.samples).sum();
    assert_eq!(own, summary.samples);
    let in_tree: u64 = folded(&report)
        .lines()
        .map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap())
        .sum();
    assert_eq!(in_tree, summary.samples);
}

#[test]
fn recursion_counts_once_in_total() {
    let report = recorded();
    assert_eq!(counts(&report, "fib"), (2, 2));
    assert_eq!(counts(&report, "main"), (0, 9));
}

#[test]
fn the_hottest_line_is_the_one_with_the_most_samples() {
    let mut recording = Recording::new(Options::default());
    for leaf in [FIB, FIB + 4, FIB + 4, FIB + 8, MAIN] {
        recording.stack(&[leaf, FIB + 0x20, MAIN]);
    }
    let report = recording.profile.finish(0);
    let fib = &report.functions()[0];
    let line = fib.hottest_line.as_ref().unwrap();
    assert_eq!((fib.samples, fib.total), (4, 5));
    assert_eq!((line.file.as_str(), line.line, line.samples), ("src/fib.c", 6, 2));
    assert_eq!(report.functions()[1].hottest_line, None, "main has no lines");
    let json: serde_json::Value = serde_json::from_str(&text(|out| report.write_json(out))).unwrap();
    assert_eq!(json["functions"][0]["file"], "src/fib.c");
    assert_eq!(json["functions"][0]["line"], 6);
    assert!(json["functions"][1].get("line").is_none());
}

#[test]
fn inlined_calls_are_frames_and_the_innermost_has_the_sample() {
    let report = recorded();
    assert_eq!(counts(&report, "hash"), (1, 1));
    assert_eq!(counts(&report, "mix"), (0, 1));
    assert_eq!(counts(&report, "update"), (0, 1));
    assert_eq!(report.summary().frames, 38, "inlined calls have no frames");
}

#[test]
fn very_deep_recursion_is_one_branch() {
    let mut recording = Recording::new(Options::default());
    for depth in 4_990..5_000 {
        let mut stack = vec![FIB; depth];
        stack.extend([MAIN, START]);
        recording.stack(&stack);
    }
    let report = recording.profile.finish(0);
    assert_eq!(counts(&report, "fib"), (10, 10));
    assert_eq!(report.tree().len(), 3 + 4_999);
    assert_eq!(folded(&report).lines().count(), 10);
    well_formed(&text(|out| report.write_flame_graph(out, "deep")));
}

#[test]
fn another_program_has_other_functions() {
    let mut recording = Recording::new(Options::default());
    recording.stack(&[MAIN, START]);
    recording.add(Item::Exec { time: 0, pid: 10 });
    recording.stack(&[MAIN]);
    recording.add(module(10, BASE, "/bin/other"));
    recording.add(name(10, 10, "other"));
    recording.stack(&[MAIN, START]);
    let report = recording.profile.finish(0);
    assert_eq!(
        folded(&report),
        "other;_start;main 1\nserver;[unknown]+0x50001110 1\nserver;_start;main 1\n"
    );
    let modules: Vec<_> = report
        .functions()
        .iter()
        .map(|function| (function.name.as_str(), function.module.as_str(), function.samples))
        .collect();
    assert!(modules.contains(&("main", "server", 1)) && modules.contains(&("main", "other", 1)));
}

#[test]
fn a_module_replaces_what_was_mapped_there() {
    let mut recording = Recording::new(Options::default());
    recording.stack(&[UPDATE]);
    recording.add(module(10, BASE, "/bin/other"));
    recording.stack(&[UPDATE]);
    assert_eq!(folded_of(recording), "server;main 1\nserver;update;mix;hash 1\n");
}

#[test]
fn a_child_has_its_own_modules_and_its_parents_name() {
    let mut recording = Recording::new(Options::default());
    recording.add(Item::Fork {
        time: 0,
        pid: 20,
        tid: 20,
        parent: 10,
    });
    let sample = |recording: &mut Recording| {
        recording.add(Item::Sample(Sample {
            time: 0,
            cpu: 0,
            pid: 20,
            tid: 20,
            frames: &frames(&[MAIN]),
            stop: Some(Stop::EndOfStack),
            live: false,
            in_kernel: false,
            wait: None,
            passed: &[],
            detail: Detail::Nothing,
        }));
    };
    sample(&mut recording);
    recording.add(module(20, BASE, "/bin/other"));
    sample(&mut recording);
    let report = recording.profile.finish(0);
    assert_eq!(folded(&report), "server;[unknown]+0x50001110 1\nserver;main 1\n");
}

#[test]
fn roots_are_a_matter_of_choice() {
    let bare = Options {
        process_root: false,
        mark_incomplete: false,
        ..Options::default()
    };
    let mut recording = Recording::new(bare);
    recording.sample(11, &frames(&[MAIN]), Some(Stop::Limit));
    recording.sample(11, &[], Some(Stop::NoUserStack));
    recording.sample(11, &[], None);
    assert_eq!(
        folded_of(recording),
        "[no stack] 1\n[stack lost];[no stack] 1\nmain 1\n"
    );

    let threads = Options {
        thread_root: true,
        ..Options::default()
    };
    let mut recording = Recording::new(threads);
    recording.sample(11, &frames(&[MAIN]), Some(Stop::Limit));
    recording.stack(&[MAIN]);
    assert_eq!(
        folded_of(recording),
        "server;pool;[incomplete: limit];main 1\nserver;server;main 1\n"
    );
}

#[test]
fn long_names_lose_their_middle_and_hostile_ones_their_control_characters() {
    let mut recording = Recording::new(Options::default());
    recording.add(name(10, 10, "\u{1b}[31mred\nserver"));
    recording.add(module(10, BASE, &format!("/{}", "long".repeat(40))));
    recording.stack(&[MAIN, START]);
    let report = recording.profile.finish(0);
    for width in [60, 80, 120] {
        let options = TableOptions {
            width: Some(width),
            limit: None,
            ..TableOptions::default()
        };
        let table = text(|out| report.write_table(out, &options));
        assert!(!table.contains('\u{1b}'));
        let rows = table
            .lines()
            .filter(|line| !line.starts_with("note") && !line.starts_with("  /"));
        for row in rows {
            assert!(row.chars().count() <= width, "{row}");
        }
        assert!(table.contains("g+0x1110  ") && table.contains("…"), "{table}");
    }
    let whole = TableOptions {
        width: None,
        limit: None,
        ..TableOptions::default()
    };
    let table = text(|out| report.write_table(out, &whole));
    assert!(table.contains(&format!("{}+0x1110", "long".repeat(40))), "{table}");
}

#[test]
fn an_empty_recording_makes_whole_reports() {
    let empty = || Recording::new(Options::default()).profile.finish(0);
    assert_eq!(folded(&empty()), "");
    assert_eq!(
        text(|out| empty().write_table(out, &TableOptions::default())),
        "0 samples, 0 lost, 0 frames, 0 bytes of trace\n"
    );
    let json = text(|out| empty().write_json(out));
    assert_eq!(
        serde_json::from_str::<serde_json::Value>(&json).unwrap()["complete"],
        0.0
    );
    well_formed(&text(|out| empty().write_flame_graph(out, "nothing")));
}

/// Reads the whole document, and gives the titles of the frames.
fn well_formed(svg: &str) -> Vec<String> {
    use quick_xml::events::Event;
    let mut reader = quick_xml::Reader::from_str(svg);
    reader.config_mut().check_end_names = true;
    let mut open = 0;
    let mut in_title = false;
    let mut titles: Vec<String> = Vec::new();
    loop {
        match reader.read_event().unwrap() {
            Event::Start(start) => {
                open += 1;
                in_title = start.name().as_ref() == b"title";
                if in_title {
                    titles.push(String::new());
                }
                for attribute in start.attributes() {
                    attribute.unwrap();
                }
            }
            Event::End(_) => {
                open -= 1;
                in_title = false;
            }
            Event::Text(part) if in_title => titles.last_mut().unwrap().push_str(&part.decode().unwrap()),
            Event::GeneralRef(entity) if in_title => {
                let entity = entity.decode().unwrap();
                titles.last_mut().unwrap().push_str(&format!("&{entity};"));
            }
            Event::Eof => break,
            _ => {}
        }
    }
    assert_eq!(open, 0);
    let allowed = |c: char| c >= ' ' || matches!(c, '\n' | '\t' | '\r');
    assert!(svg.chars().all(allowed), "a character that XML can't hold");
    titles
}

#[test]
fn the_flame_graph_is_well_formed_and_names_every_frame() {
    let svg = |report: &Report| text(|out| report.write_flame_graph(out, "a <b> & \"c\"\u{1}"));
    let drawn = svg(&recorded());
    assert_eq!(drawn, svg(&recorded()), "the same report gives the same image");
    let titles = well_formed(&drawn);
    for title in [
        "server (12 samples, 100.00%)",
        "parse&lt;[u8: 8]&gt; (7 samples, 58.33%)",
        "vfs_read (1 samples, 8.33%)",
        "[stack lost] (1 samples, 8.33%)",
        "worker_7 (1 samples, 8.33%)",
    ] {
        assert!(titles.iter().any(|found| found == title), "{title} in {titles:?}");
    }
    assert!(drawn.contains("a &lt;b&gt; &amp;"));
}

#[test]
fn a_flame_graph_of_too_many_frames_draws_the_widest() {
    let bare = Options {
        process_root: false,
        ..Options::default()
    };
    let mut recording = Recording::new(bare);
    let mut state = 1_u64;
    for _ in 0..100 {
        let stack: Vec<u64> = (0..1_000)
            .map(|_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                [FIB, PARSE, WORKER][(state >> 33) as usize % 3]
            })
            .collect();
        recording.stack(&stack);
    }
    recording.stack(&[MAIN]);
    let report = recording.profile.finish(0);
    assert!(report.tree().len() > 90_000);
    let svg = text(|out| report.write_flame_graph(out, "wide"));
    let titles = well_formed(&svg);
    assert!(titles.len() < 50_000, "{} frames", titles.len());
    assert!(svg.contains("101 samples") && svg.contains("calls of fewer than 2 samples not drawn"));
    assert!(titles.iter().any(|title| title == "[not drawn] (1 samples, 0.99%)"));
}

#[test]
fn any_items_in_any_order_are_counted() {
    let mut state = 0x1234_5678_9abc_def1_u64;
    let mut next = move |below: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % below
    };
    for _ in 0..50 {
        let mut recording = Recording::new(Options::default());
        let mut samples = 0;
        for _ in 0..200 {
            let pid = 10 + next(3) as u32;
            let tid = pid + next(2) as u32;
            let place = BASE + next(4) * 0x8000;
            match next(8) {
                0 => recording.add(module(
                    pid,
                    place,
                    ["/bin/other", "", "[vdso]", "/x\n;y"][next(4) as usize],
                )),
                1 => recording.add(Item::Exec { time: next(9), pid }),
                2 => recording.add(name(pid, tid, ["", ";", "a b 3", "\u{0}"][next(4) as usize])),
                3 => recording.add(Item::Fork {
                    time: 0,
                    pid,
                    tid,
                    parent: 10 + next(3) as u32,
                }),
                4 => recording.add(Item::Exit { time: 0, pid, tid }),
                _ => {
                    let stack: Vec<Frame> = (0..next(6))
                        .map(|_| Frame {
                            kind: [FrameKind::Pc, FrameKind::Ra, FrameKind::Omitted][next(3) as usize],
                            address: [0, u64::MAX, KERNEL + 0x100, place + 0x1110, place][next(5) as usize],
                        })
                        .collect();
                    let stop = Stop::from_number(next(9) as u8);
                    recording.sample(tid, &stack, stop);
                    samples += 1;
                }
            }
        }
        let report = recording.profile.finish(0);
        let lines = folded(&report);
        let counted: u64 = lines
            .lines()
            .map(|line| line.rsplit_once(' ').unwrap().1.parse::<u64>().unwrap())
            .sum();
        assert_eq!(counted, samples);
        well_formed(&text(|out| report.write_flame_graph(out, "any")));
        assert!(report.functions().iter().all(|function| {
            !function.name.is_empty() && function.samples <= function.total && function.total <= samples
        }));
    }
}
