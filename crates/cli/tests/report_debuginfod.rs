//! Lines from a debuginfod server: Debian's, on the loopback address.

use crate::common;

use std::fs;
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use backtrail_testkit::{available, command, skip};
use common::{LIMIT, setup, text};

/// A server that ends with the test.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

const SOURCE: &[u8] = b"#include <time.h>
volatile unsigned n;
__attribute__((noinline)) void spin(void) { for (int i = 0; i < 1000000; i++) n += i; }
int main(void) { for (long end = clock() + CLOCKS_PER_SEC; clock() < end;) spin(); }
";

#[test]
fn lines_come_from_a_server_if_it_is_named() {
    let Some(setup) = setup() else { return };
    let source = setup.file("spin.c", SOURCE);
    let (program, debug) = (setup.path("spin"), setup.path("debug"));
    fs::create_dir(&debug).expect("the test's directory can be written");
    let run = |program: &str, arguments: &[&str]| {
        let finished = available(command::run(Command::new(program).args(arguments), LIMIT))?;
        assert!(finished.status.success(), "{}", finished.describe());
        Some(finished)
    };
    let built = || {
        run("gcc", &["-g", "-Wl,--build-id", "-o", text(&program), text(&source)])?;
        let kept = debug.join("spin.debug");
        run("objcopy", &["--only-keep-debug", text(&program), text(&kept)])?;
        run("strip", &["-g", text(&program)])
    };
    if built().is_none() {
        return;
    }
    let port = TcpListener::bind("127.0.0.1:0")
        .and_then(|listener| listener.local_addr())
        .expect("a port")
        .port();
    let mut serve = Command::new("debuginfod");
    serve
        .args(["-p", &port.to_string(), "-d", ":memory:", "-F"])
        .arg(&debug);
    let Ok(child) = serve.stdout(Stdio::null()).stderr(Stdio::null()).spawn() else {
        skip("there is no debuginfod");
        return;
    };
    let _server = Server(child);
    let url = format!("http://127.0.0.1:{port}");

    let backtrail = |arguments: &[&str]| {
        let mut run = Command::new(env!("CARGO_BIN_EXE_backtrail"));
        run.env("DEBUGINFOD_CACHE_PATH", setup.path("cache"))
            .env_remove("DEBUGINFOD_URLS");
        // Answers that a file is missing are kept, too.
        run.env("DEBUGINFOD_TIMEOUT", "10");
        let finished = command::run(run.args(arguments), LIMIT).expect("the command is there");
        assert!(finished.status.success(), "{}", finished.describe());
        finished
    };
    let trace = setup.path("trace");
    backtrail(&["record", "-q", "-o", text(&trace), "--", text(&program)]);
    let lines = || backtrail(&["report", text(&trace), "--by", "line"]).stdout;
    assert!(!lines().contains("spin.c"), "{}", lines());
    backtrail(&["pack", "-q", text(&trace)]);
    assert!(!lines().contains("spin.c"), "nobody named a server: {}", lines());
    // The server reads its folder in its own time.
    let end = Instant::now() + Duration::from_secs(60);
    while !lines().contains("spin.c:3") && Instant::now() < end {
        let _ = fs::remove_dir_all(setup.path("cache"));
        backtrail(&["pack", "-q", text(&trace), "--debuginfod", &url]);
        sleep(Duration::from_millis(200));
    }
    assert!(lines().contains("spin.c:3"), "{}", lines());
    // A server that is gone costs nothing but the lines, which are here already.
    backtrail(&["pack", "-q", text(&trace), "--no-debuginfod"]);
    assert!(lines().contains("module"));
}
