//! The examples at the end of each verb's help. `tests/examples.rs` runs them as they are printed,
//! in a folder with the program that they name.

/// A verb's path, and its command lines.
type Examples = (&'static [&'static str], &'static [&'static str]);

const EXAMPLES: &[Examples] = &[
    (
        &["record"],
        &[
            "backtrail record -o server.trace -- ./server 200",
            "backtrail record -o live.trace -p $(pidof -s server) --duration 1",
            "backtrail record -o calls.trace --entry parse -- ./server 1",
            "backtrail record -o slow.trace --entry parse --min-duration 250us -- ./server 1",
            "backtrail record -o machine.trace -a -F 97 --duration 1",
            "backtrail record -o machine -a -F 97 --rotate 1min --keep 1h --duration 1",
            "backtrail record -o waits.trace --off-cpu -- ./server 200",
            "backtrail record -o faults.trace --event page-faults --count 1 -- ./server 200",
            "backtrail record -o events.trace --event page-faults --event cpu-clock -- ./server 200",
            "backtrail record -o last --snapshot-on exit --keep 10s -- ./server 200",
        ],
    ),
    (
        &["report"],
        &[
            "backtrail report server.trace",
            "backtrail report server.trace --html server.html",
            "backtrail report server.trace --by line --time 0..0.1",
            "backtrail report server.trace --callers parse",
            "backtrail report slow.trace --durations --folded slow.folded",
            "backtrail report events.trace --event cpu-clock",
            "backtrail report server.trace --annotate parse --whole --sysroot /",
        ],
    ),
    (
        &["top"],
        &[
            "backtrail top --once -p $(pidof -s server)",
            "backtrail top --by thread --interval 0.5 -- sleep 1",
            "backtrail top -a --once --by process",
        ],
    ),
    (
        &["export"],
        &[
            "backtrail export server.trace --to pprof -o server.pb.gz",
            "backtrail export server.trace --to firefox -o server.json.gz",
        ],
    ),
    (
        &["import"],
        &[
            "backtrail import perf.data -o perf.trace",
            "backtrail import perf.data -o image.trace --sysroot /",
            "backtrail import - -o piped.trace < perf.data",
        ],
    ),
    (
        &["pack"],
        &[
            "backtrail pack server.trace",
            "backtrail pack --no-debuginfod server.trace",
        ],
    ),
    (&["cache", "info"], &["backtrail cache info"]),
    (&["cache", "clear"], &["backtrail cache clear"]),
    (
        &["stack"],
        &[
            "backtrail stack $(pidof -s server)",
            "backtrail stack $(pidof -s server) --args",
            "backtrail stack $(pidof -s server) --args=numbers --hide '*key*'",
            "backtrail stack $(pidof -s server) --json > server.json",
        ],
    ),
    (
        &["collect"],
        &["backtrail collect --folder crashes $(pidof -s server) 0 0 11 < core"],
    ),
    (
        &["crashes", "list"],
        &[
            "backtrail crashes list --folder crashes",
            "backtrail crashes list --folder crashes --all --json > crashes.json",
        ],
    ),
    (&["crashes", "show"], &["backtrail crashes show last --folder crashes"]),
    (
        &["crashes", "clear"],
        &["backtrail crashes clear --folder crashes --before 30d"],
    ),
    #[cfg(feature = "store")]
    (
        &["store", "add"],
        &[
            "backtrail store add server.trace --to fleet",
            "backtrail store add server.trace --to fleet --service web --label version=1.2",
            "backtrail store add crashes --to fleet",
        ],
    ),
    #[cfg(feature = "store")]
    (
        &["store", "symbols"],
        &[
            "backtrail store symbols fleet",
            "backtrail store symbols fleet --from rootfs --no-debuginfod",
            "backtrail store symbols fleet --json",
        ],
    ),
    #[cfg(feature = "store")]
    (
        &["store", "query"],
        &[
            "backtrail store query fleet self --service server",
            "backtrail store query fleet flame --since 2h -o fleet.html",
            "backtrail store query fleet top-crashes --since 7d --by service",
            "backtrail store query fleet total --by host --sql > total.sql",
        ],
    ),
    #[cfg(feature = "store")]
    (
        &["store", "compact"],
        &[
            "backtrail store compact fleet",
            "backtrail store compact fleet --remove-before 30d",
        ],
    ),
    #[cfg(feature = "store")]
    (
        &["store", "check"],
        &["backtrail store check fleet", "backtrail store check fleet --json"],
    ),
    #[cfg(feature = "store")]
    (
        &["store", "push"],
        &[
            "backtrail store push server.trace --otlp http://localhost:4318",
            "backtrail store push server.trace live.trace --otlp http://localhost:4318 --timeout 5",
        ],
    ),
    (
        &["trace", "show"],
        &[
            "backtrail trace show server.trace | head",
            "backtrail trace show --json server.trace > server.jsonl",
            "backtrail trace show server.trace --where 'name == backtrail:sample && cpu == 0' | head",
            "backtrail trace show --follow --duration 1 server.trace --names all | head",
        ],
    ),
    (
        &["trace", "info"],
        &[
            "backtrail trace info server.trace",
            "backtrail trace info --json server.trace",
            "backtrail trace info server.trace --begin 0 --clock-gmt",
        ],
    ),
    (
        &["trace", "check"],
        &[
            "backtrail trace check server.trace",
            "backtrail trace check --json server.trace live.trace",
        ],
    ),
    (
        &["trace", "convert"],
        &[
            "backtrail trace convert server.trace -o server.ctf1 --to 1.8",
            "backtrail trace convert server.trace -o server.rfc --to rfc1.1 --compress gzip --checksum md5",
        ],
    ),
    (
        &["trace", "record"],
        &[
            "backtrail trace record -o session ./server 200",
            "backtrail trace record -o errors --events '*@error+stack' ./server 200",
            "backtrail trace record -o running --attach --duration 1",
        ],
    ),
    (&["trace", "recover"], &["backtrail trace recover session"]),
    (
        &["trace", "serve"],
        &["backtrail trace serve session --listen localhost:5355 --duration 4"],
    ),
    (
        &["trace", "receive"],
        &[
            "backtrail trace receive --from localhost:5356 -o received",
            "backtrail trace receive --listen udp://0.0.0.0:5346 -o remote --duration 2",
        ],
    ),
    (
        &["trace", "send"],
        &[
            "backtrail trace send session --to tcp://localhost:5347",
            "backtrail trace send session --to tcp://localhost:5347 --follow --duration 2",
        ],
    ),
    (
        &["cbf", "encode"],
        &[
            "backtrail cbf encode --word 64 pc:0x401136 ra:0x401180 ra:0x7f0000001000",
            "backtrail cbf encode --word 64 pc:0x401136 ra:0x401180 > stack.hex",
        ],
    ),
    (
        &["cbf", "decode"],
        &[
            "backtrail cbf decode $(cat stack.hex)",
            "backtrail cbf decode --json $(cat stack.hex)",
        ],
    ),
    (
        &["sframe", "build"],
        &[
            "backtrail sframe build server -o server.sframe",
            "backtrail sframe build server -o server.v2.sframe --version 2",
            "backtrail sframe build server -o server.glibc.sframe --for glibc-2.42",
        ],
    ),
    (
        &["sframe", "add"],
        &[
            "backtrail sframe add server -o server.new",
            "backtrail sframe add server.new",
            "backtrail sframe add -r rootfs",
            "backtrail sframe add -r rootfs --for kernel",
        ],
    ),
    (
        &["sframe", "show"],
        &[
            "backtrail sframe show server.new",
            "backtrail sframe show --json server.new",
        ],
    ),
    (
        &["sframe", "check"],
        &[
            "backtrail sframe check server.new",
            "backtrail sframe check --json server.new",
            "backtrail sframe check --for kernel server.new",
        ],
    ),
    (
        &["sframe", "convert"],
        &[
            "backtrail sframe convert server.new --to 2 -o server.v2",
            "backtrail sframe convert server.new --for glibc-2.42 -o server.glibc",
        ],
    ),
    (
        &["sframe", "strip"],
        &["backtrail sframe strip server.new -o server.plain"],
    ),
    (
        &["sframe", "size"],
        &[
            "backtrail sframe size server",
            "backtrail sframe size --json server server.o",
        ],
    ),
    (&["types", "build"], &["backtrail types build server -o server.ctf"]),
    (&["types", "add"], &["backtrail types add server -o server.types"]),
    (
        &["types", "show"],
        &[
            "backtrail types show server.types",
            "backtrail types show --json server.types",
        ],
    ),
    (
        &["types", "print"],
        &[
            "backtrail types print server 'struct request'",
            "backtrail types print server.types > server.h",
        ],
    ),
    (
        &["types", "find"],
        &[
            "backtrail types find server.ctf.o parse",
            "backtrail types find server.types 'struct request' --json",
        ],
    ),
    (
        &["types", "link"],
        &["backtrail types link server.ctf.o parse.ctf.o -o program.ctf"],
    ),
    (
        &["types", "diff"],
        &[
            "backtrail types diff server.types server.types",
            "backtrail types diff --json --severity breaking server.types server.types",
        ],
    ),
    (
        &["link"],
        &[
            "backtrail link --sframe 3 -- cc -O2 -o server.linked server.c",
            "backtrail link --for kernel -- cc -O2 -o server.linked server.c",
            "backtrail link --sframe 3 --types -- cc -g -O2 -o server.linked server.c",
        ],
    ),
    (
        &["completions"],
        &[
            "backtrail completions bash > backtrail.bash",
            "backtrail completions zsh > _backtrail",
        ],
    ),
    (
        &["man"],
        &["backtrail man > backtrail.1", "backtrail man --directory man1"],
    ),
];

/// Adds the examples to the help of their verbs.
pub(crate) fn add(command: clap::Command) -> clap::Command {
    EXAMPLES
        .iter()
        .fold(command, |command, (path, lines)| add_to(command, path, lines))
}

fn add_to(command: clap::Command, path: &[&'static str], lines: &[&str]) -> clap::Command {
    match path {
        [] => command.after_help(format!("EXAMPLES\n  {}", lines.join("\n  "))),
        [verb, rest @ ..] => command.mut_subcommand(verb, |command| add_to(command, rest, lines)),
    }
}
