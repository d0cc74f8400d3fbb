//! Pictures of what commands print: `top`, and crashes of programs without debug information beside
//! gdb's text with it.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use backtrail_testkit::browser::{Browser, Theme};
use backtrail_testkit::recorder::Backtrail;
use backtrail_testkit::{command, debugger, place, scratch, workload};
use serde_json::json;

use super::{run_to_end, taken};

const LIMIT: Duration = Duration::from_secs(60);

/// A program that dies: its compiler, and its source among testkit's programs.
struct Dies {
    name: &'static str,
    compiler: &'static [&'static str],
    file: &'static str,
}

const DIE: [Dies; 3] = [
    Dies {
        name: "crash-c",
        compiler: &["gcc", "-g", "-O2"],
        file: "login.c",
    },
    Dies {
        name: "crash-cpp",
        compiler: &["g++", "-g", "-O2", "-std=c++17"],
        file: "shop.cpp",
    },
    Dies {
        name: "crash-rust",
        compiler: &[
            "rustc",
            "-g",
            "-C",
            "opt-level=2",
            "-C",
            "panic=abort",
            "--edition",
            "2024",
        ],
        file: "mail.rs",
    },
];

/// Writes `top.png` and the pictures of crashes.
pub(super) fn run(browser: &mut Browser, backtrail: &Backtrail, out: &Path) -> Result<(), String> {
    browser.prefer(Theme::Dark);
    let folder = scratch();
    for dies in &DIE {
        let text = died(backtrail, dies)?;
        let file = out.join(format!("{}.png", dies.name));
        drawn(browser, folder.path(), &text, None, &file)?;
    }
    drawn(browser, folder.path(), &top(backtrail)?, None, &out.join("top.png"))
}

fn died(backtrail: &Backtrail, dies: &Dies) -> Result<String, String> {
    let folder = scratch();
    let here = folder.path();
    // gdb prints the name that the compiler was called with.
    fs::copy(place::programs().join(dies.file), here.join(dies.file)).map_err(|error| error.to_string())?;
    let (program, arguments) = dies.compiler.split_first().ok_or("no compiler")?;
    let mut compile = Command::new(program);
    run_to_end(
        compile
            .args(arguments)
            .args(["-o", "whole", dies.file])
            .current_dir(here),
    )?;
    run_to_end(
        backtrail
            .command(["sframe", "add", "--args", "--innermost", "whole"])
            .current_dir(here),
    )?;
    let [whole, stripped] = ["whole", "stripped"].map(|name| here.join(name));
    run_to_end(Command::new("strip").args(["-d", "-o"]).args([&stripped, &whole]))?;
    let name = dies.file.split('.').next().unwrap_or_default();
    let run = here.join(name);
    fs::rename(&whole, &run).map_err(|error| error.to_string())?;
    let core = debugger::crashed(&folder, &[run.as_os_str()]).map_err(|missing| missing.to_string())?;
    let text = |command: &mut Command| {
        let finished = command::run(command.current_dir(here), LIMIT).map_err(|error| error.to_string())?;
        Ok::<_, String>(finished.stdout)
    };
    let mut stack = backtrail.command(["stack", "--args", "--exe", "stripped", "--hide", "*password*"]);
    let ours = text(stack.arg(&core))?;
    let mut gdb = Command::new("gdb");
    gdb.args(["-batch", "-nx", "-ex", "set debuginfod enabled off", "-ex", "bt"]);
    let theirs = text(gdb.arg(&run).arg(&core))?;
    let theirs: Vec<&str> = theirs.lines().filter(|line| line.starts_with('#')).collect();
    // gdb prints the innermost frame when it opens the core, too.
    let from = theirs.iter().rposition(|line| line.starts_with("#0")).unwrap_or(0);
    Ok(format!(
        "$ strip -d -o stripped {name}\n\
         $ backtrail stack core --args --exe stripped --hide '*password*'\n{ours}\n\
         $ gdb {name} core\n(gdb) bt\n{}\n",
        theirs[from..].join("\n"),
    ))
}

fn top(backtrail: &Backtrail) -> Result<String, String> {
    let folder = scratch();
    let busy = workload::compiler(4, folder.path()).map_err(|missing| missing.to_string())?;
    let mut top = backtrail.command(["top", "--once", "--interval", "2", "--limit", "14", "--"]);
    top.args(&busy.arguments).current_dir(folder.path());
    let finished = command::run(&mut top, LIMIT).map_err(|error| error.to_string())?;
    Ok(format!("$ backtrail top -- g++ …\n{}", finished.stdout))
}

/// A terminal with this text, and perhaps an image of the folder below it.
pub(super) fn drawn(
    browser: &mut Browser,
    folder: &Path,
    text: &str,
    image: Option<&str>,
    file: &Path,
) -> Result<(), String> {
    let console = folder.join("console.html");
    let page = "<!DOCTYPE html><meta charset=utf-8><title>console</title><body>";
    fs::write(&console, page).map_err(|error| error.to_string())?;
    browser.resize(1000, 200, false);
    browser.open(&console, "document.title");
    browser.value(&format!(
        "(() => {{ document.body.style.cssText = 'margin:0;background:#16171a'; const pre = document.createElement('pre'); \
         pre.textContent = {}; pre.style.cssText = 'margin:0;padding:14px 18px;background:#16171a;color:#e7e8ea;\
         white-space:pre-wrap;font:13px/1.35 \"DejaVu Sans Mono\",monospace'; document.body.append(pre); \
         if (!{1}) return; const image = new Image(); image.style.cssText = 'display:block;width:1000px'; \
         image.src = {1}; document.body.append(image); return image.decode(); }})()",
        json!(text),
        json!(image)
    ));
    let height = browser.value("document.body.scrollHeight").as_u64().unwrap_or(900);
    browser.resize(1000, height as u32, false);
    browser.value("new Promise(done => setTimeout(done, 300))");
    taken(browser, file)
}
