//! The programs that are stopped, and their tasks.

use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread::{sleep, spawn};
use std::time::{Duration, Instant};

type Questions = fn() -> Vec<u8>;

/// A program, by its name.
pub(super) struct Subject<'s> {
    pub(super) name: &'s str,
    /// Makes its input in a folder; the second argument is the program.
    pub(super) prepare: fn(&Path, &Path) -> io::Result<()>,
    /// Its command lines in that folder, used one after the other.
    pub(super) calls: &'s [&'s [&'s str]],
    /// For servers, the client: the socket, and the requests.
    pub(super) asked: Option<(&'static str, Questions)>,
    /// Whether it is compiled by clang too.
    pub(super) by_clang_too: bool,
    /// Whether it is compiled for AArch64 too.
    pub(super) for_aarch64_too: bool,
}

impl<'s> Subject<'s> {
    /// Any program, with this command line.
    pub(super) fn of(name: &'s str, calls: &'s [&'s [&'s str]]) -> Subject<'s> {
        Subject {
            name,
            prepare: |_, _| Ok(()),
            calls,
            asked: None,
            by_clang_too: false,
            for_aarch64_too: false,
        }
    }
}

pub(super) const SUBJECTS: [Subject<'static>; 9] = [
    Subject {
        name: "lua",
        prepare: |folder, _| fs::write(folder.join("script.lua"), LUA),
        calls: &[&["script.lua"]],
        asked: None,
        by_clang_too: true,
        for_aarch64_too: true,
    },
    Subject {
        name: "redis-server",
        prepare: |_, _| Ok(()),
        calls: &[&[
            "--port",
            "0",
            "--unixsocket",
            "socket",
            "--save",
            "",
            "--appendonly",
            "no",
        ]],
        asked: Some(("socket", redis)),
        by_clang_too: false,
        for_aarch64_too: false,
    },
    Subject {
        name: "sqlite3",
        prepare: |folder, _| fs::write(folder.join("work.sql"), SQL.0.to_owned() + &SQL.1.repeat(500)),
        calls: &[&["work.db", ".read work.sql"]],
        asked: None,
        by_clang_too: true,
        for_aarch64_too: false,
    },
    Subject {
        name: "git",
        prepare: repository,
        calls: &[
            &["log", "-p", "--stat", "-M"],
            &["blame", "file-3.c"],
            &["grep", "-n", "value [0-9]*7;"],
            &["rev-list", "--objects", "--all"],
            &["fsck", "--full"],
            &["log", "--graph", "--oneline", "-S", "value 77;"],
            &["repack", "-a", "-f", "-d", "--window=50"],
            &["format-patch", "--stdout", "--root", "HEAD"],
        ],
        asked: None,
        by_clang_too: false,
        for_aarch64_too: false,
    },
    Subject {
        name: "nginx",
        prepare: |folder, _| {
            fs::create_dir_all(folder.join("html/folder"))?;
            fs::create_dir_all(folder.join("logs"))?;
            for number in 0..50 {
                fs::write(
                    folder.join(format!("html/folder/{number}.html")),
                    "text ".repeat(number * 40),
                )?;
            }
            fs::write(folder.join("html/page.shtml"), SSI)?;
            fs::write(folder.join("nginx.conf"), NGINX)
        },
        calls: &[&["-p", ".", "-c", "nginx.conf", "-e", "logs/error"]],
        asked: Some(("socket", nginx)),
        by_clang_too: false,
        for_aarch64_too: false,
    },
    Subject {
        name: "bash",
        prepare: |folder, _| fs::write(folder.join("script.sh"), BASH),
        calls: &[&["--norc", "script.sh"]],
        asked: None,
        by_clang_too: false,
        for_aarch64_too: false,
    },
    Subject {
        name: "bzip2",
        prepare: |folder, bzip2| {
            fs::write(folder.join("data"), data())?;
            let mut pack = Command::new(bzip2);
            pack.args(["-k", "data"]).current_dir(folder).status().map(drop)
        },
        calls: &[
            &["-kf", "data"],
            &["-tv", "data.bz2"],
            &["-kfs", "data"],
            &["-dkfs", "data.bz2"],
        ],
        asked: None,
        by_clang_too: false,
        for_aarch64_too: false,
    },
    Subject {
        name: "zstd",
        prepare: |folder, _| fs::write(folder.join("data"), data()),
        calls: &[
            &["-qb19", "-i1", "data"],
            &["-qb3", "-i1", "data"],
            &["-qb6", "--long", "-i1", "data"],
            &["-qf", "--ultra", "-22", "--single-thread", "data"],
            &["-q", "--train", "-B1024", "data", "-o", "dictionary"],
        ],
        asked: None,
        by_clang_too: false,
        for_aarch64_too: false,
    },
    Subject {
        name: "mujs",
        prepare: |folder, _| fs::write(folder.join("script.js"), JAVASCRIPT),
        calls: &[&["script.js"]],
        asked: None,
        by_clang_too: false,
        for_aarch64_too: false,
    },
];

/// Text that can be compressed well in parts.
fn data() -> Vec<u8> {
    let mut state = 1_u32;
    let mut data = Vec::new();
    while data.len() < 4 << 20 {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        match state >> 30 {
            0 => data.extend(state.to_string().bytes()),
            1 => data.extend(b"the same words again "),
            2 => data.extend(state.to_le_bytes()),
            _ => data.extend_from_within(data.len().saturating_sub((state >> 20) as usize)..),
        }
    }
    data
}

/// Expansions, functions, arrays, patterns and arithmetic, without other programs.
const BASH: &str = r#"
fib() { local n=$1; if (( n < 2 )); then r=$n; else fib $((n - 1)); local a=$r; fib $((n - 2)); r=$((a + r)); fi; }
declare -A map; words=()
while :; do
  for i in {1..60}; do words+=("w$((i * 7919 % 1000))x"); map[k$i]=${words[-1]^^}; done
  for w in "${words[@]}"; do
    [[ $w =~ ^w([0-9]+)x$ ]] && n=${BASH_REMATCH[1]}
    case $w in w1*) s+=${w//x/yy};; *[02468]x) s=${s#w};; *) printf -v t '%05d %s' "$n" "${w:1:2}";; esac
  done
  fib 8; IFS=, read -r a b c <<<"1,$t,3"; v=$(echo "$a $b" | while read -r l; do echo "${l%% *}"; done)
  eval "x=\$((${#words[@]} + $a))"; words=(); s=
done
"#;

const JAVASCRIPT: &str = r#"
function fib(n) { return n < 2 ? n : fib(n - 1) + fib(n - 2); }
for (;;) {
  var t = [];
  for (var i = 0; i < 200; ++i) t.push({ a: (i * 7919 % 1000) + "x", b: [i, i / 3] });
  t.sort(function (x, y) { return x.a < y.a ? -1 : x.a > y.a ? 1 : 0; });
  var s = JSON.stringify(t), u = JSON.parse(s);
  s = s.replace(/(\d)x/g, function (m, d) { return d + d; }).split(",").slice(3, 90).join(";").toUpperCase();
  fib(12); new Date(i * 1e9).toISOString(); parseFloat("1.5e3" + i).toFixed(2); encodeURIComponent(s);
  try { null.x; } catch (e) { u = String(e); }
  new Function("a", "b", "var x = {}; for (var k in a) x[k] = b; return x;")(u, s);
}
"#;

/// A script that alternates between the interpreter, its library and its collector.
const LUA: &str = r#"
local function fib(n) if n < 2 then return n end return fib(n - 1) + fib(n - 2) end
local t = {}
while true do
  for i = 1, 200 do t[i] = tostring(i * 7919 % 1000) .. "x" end
  table.sort(t, function(a, b) return a < b end)
  local s, c = table.concat(t, ","), 0
  for w in s:gmatch("%d+") do c = c + tonumber(w) end
  s = s:gsub("(%d)x", function(d) return d .. d end)
  fib(10)
  local f = load("return function(a, b) local x = {} for i = 1, a do x[i] = {b, i} end return x end")
  local co = coroutine.wrap(function() for i = 1, 5 do coroutine.yield(string.format("%5.2f %s %d", i / 3, "abc", i)) end end)
  for i = 1, 5 do co() end
  f()(20, s)
  pcall(error, {1})
  collectgarbage("step")
end
"#;

/// Statements that run once, and statements that are repeated.
const SQL: (&str, &str) = (
    "PRAGMA journal_mode=MEMORY;
create table if not exists t(id integer primary key, a text, b real, c blob);
create index if not exists by_a on t(a);
create table if not exists log(what text, id integer);
create trigger if not exists grown after insert on t when new.id % 5 = 0 begin insert into log values('grown', new.id); end;
create view if not exists v as select a, count(*) n, avg(b) m from t group by a;
",
    "with recursive n(i) as (select 1 union all select i + 1 from n where i < 800)
  insert into t(a, b, c) select printf('%05d', i * 7919 % 1000), i * 1.5, randomblob(20) from n;
select count(*), sum(m) from v where a like '%7%';
select x.a, y.b from t x join t y on x.id = y.id + 1 where x.b > y.b order by x.a desc, y.b limit 20;
select a, sum(b) over (partition by substr(a, 1, 2) order by id) from t limit 30;
select json_group_array(json_object('a', a, 'b', b)) from (select * from t limit 50);
update t set b = b + 1, a = upper(hex(c)) where id % 7 = 3;
select strftime('%Y-%m-%d', id * 1000, 'unixepoch'), round(b, 2), trim(replace(a, '0', ' ')) from t where a in (select a from t where b > 100) limit 50;
explain query plan select * from t where a between '1' and '2' or id = 3;
delete from t where id % 3 <> 0 or id < (select max(id) - 1000 from t);
pragma integrity_check;
",
);

const NGINX: &str = "daemon off; master_process off; worker_processes 1;
error_log logs/error; pid logs/pid;
events { worker_connections 64; }
http {
  access_log logs/access;
  keepalive_requests 1000000000;
  ssi on; ssi_types text/plain;
  map $uri $kind { default other; /folder/ listing; }
  server {
    listen unix:socket;
    root html;
    location / { add_header X-Kind $kind; }
    location /folder/ { autoindex on; expires 1h; }
    location /inner/ { internal; alias html/folder/; }
    location /through/ { proxy_pass http://unix:socket:/folder/; }
  }
}
";

const SSI: &str =
    "<!--#set var=\"x\" value=\"$kind\" --><!--#if expr=\"$x = other\" -->yes<!--#else -->no<!--#endif -->
<!--#include virtual=\"/folder/3.html\" --><!--#echo var=\"x\" -->
";

fn redis() -> Vec<u8> {
    let mut all = String::new();
    for i in 0..40 {
        all += &format!(
            "SET key:{i} value{i}\r\nINCR n:{i}\r\nAPPEND key:{i} abc\r\nLPUSH list:{} {i} x{i}\r\nLTRIM list:{} 0 200\r\nLRANGE list:{} 0 30\r\n\
             SADD set:{} {i} a b c{i}\r\nSINTER set:1 set:2\r\nSUNIONSTORE union set:1 set:3\r\nHSET hash:{} f{i} v{i} g 7\r\nHGETALL hash:1\r\n\
             ZADD z {i} m{i} {} n{i}\r\nZRANGEBYSCORE z 3 20 WITHSCORES LIMIT 0 10\r\nZUNIONSTORE zu 2 z z WEIGHTS 2 3\r\nEXPIRE key:{i} 100\r\n\
             SORT list:1 ALPHA LIMIT 0 5\r\nXADD stream MAXLEN 100 * field {i}\r\nXRANGE stream - + COUNT 5\r\nSCAN 0 MATCH k* COUNT 20\r\n\
             SETBIT bits {i} 1\r\nBITCOUNT bits\r\nPFADD hll {i} {}\r\nPFCOUNT hll\r\nGEOADD geo 13.{i} 38.1 p{i}\r\nOBJECT ENCODING z\r\n\
             EVAL \"for i = 1, 20 do redis.call('set', 'l' .. i, i) end return cjson.encode({{1, 2, {{a = KEYS[1]}}}})\" 1 k\r\n",
            i % 5,
            i % 5,
            i % 5,
            i % 4,
            i % 3,
            i * 3,
            i * 31,
        );
    }
    (all + "INFO\r\nMULTI\r\nGET n:1\r\nDEL n:1\r\nEXEC\r\nDEBUG SLEEP 0\r\n").into_bytes()
}

fn nginx() -> Vec<u8> {
    let pages = [
        "/folder/",
        "/folder/7.html",
        "/folder/40.html",
        "/none",
        "/page.shtml",
        "/through/",
        "/a/../folder/2.html?x=%41",
        "/inner/1.html",
    ];
    let questions = pages.map(|page| {
        format!("GET {page} HTTP/1.1\r\nHost: here\r\nUser-Agent: asks\r\nAccept: */*\r\nRange: bytes=1-99\r\nCookie: a=b; c=d\r\n\r\n")
    });
    questions.concat().into_bytes()
}

/// Sends requests without end, in a thread that ends when nobody listens any more.
pub(super) fn ask(socket: &Path, questions: Vec<u8>) -> io::Result<()> {
    let start = Instant::now();
    let mut stream = loop {
        match UnixStream::connect(socket) {
            Ok(stream) => break stream,
            Err(error) if start.elapsed() > Duration::from_secs(60) => return Err(error),
            Err(_) => sleep(Duration::from_millis(20)),
        }
    };
    let mut answers = stream.try_clone()?;
    spawn(move || while stream.write_all(&questions).is_ok() {});
    spawn(move || {
        let mut buffer = vec![0; 1 << 16];
        while answers.read(&mut buffer).is_ok_and(|len| len > 0) {}
    });
    Ok(())
}

/// A repository in which some files change often.
fn repository(folder: &Path, git: &Path) -> io::Result<()> {
    let run = |arguments: &[&str]| {
        Command::new(git)
            .args(arguments)
            .current_dir(folder)
            .stdout(Stdio::null())
            .status()
    };
    run(&["init", "-q", "."])?;
    let mut import = Command::new(git);
    import
        .args(["fast-import", "--quiet"])
        .current_dir(folder)
        .stdin(Stdio::piped());
    let mut import = import.spawn()?;
    let mut input = import.stdin.take().ok_or(io::ErrorKind::BrokenPipe)?;
    for number in 0..400 {
        let message = format!("change {number}\n\nwhat was {} is {number}\n", number / 2);
        writeln!(
            input,
            "commit refs/heads/master\ncommitter A <a@b.c> {} +0100",
            1_700_000_000 + number * 60
        )?;
        write!(input, "data {}\n{message}\n", message.len())?;
        for file in (0..12).filter(|file| (number + file) % 4 == 0) {
            let line = |index: u32| {
                format!(
                    "int f{index}(void) {{ return value {}; }}\n",
                    index * 7 + (number + index) / 9 % 50
                )
            };
            let text: String = (0..150).map(line).collect();
            write!(input, "M 100644 inline file-{file}.c\ndata {}\n{text}\n", text.len())?;
        }
    }
    drop(input);
    import.wait()?;
    run(&["reset", "-q", "--hard", "master"]).map(drop)
}
