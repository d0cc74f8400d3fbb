//! Pictures of the page's views, for `docs/` and the README.

use std::fs;
use std::path::{Path, PathBuf};

use backtrail_testkit::browser::{Browser, Theme};
use backtrail_testkit::recorder::Backtrail;
use backtrail_testkit::{command, perf, place, readers, scratch, workload};

use super::{WHOLE, beside, consoles, run_to_end, taken};

const VIEWS: [&str; 6] = ["flame", "functions", "sandwich", "threads", "endings", "about"];

/// Records two runs of a compiler, and writes the pictures of their pages, and of what other
/// commands print, to docs/pictures.
pub(crate) fn run() -> Result<(), String> {
    perf::sampling_permitted().map_err(|missing| missing.to_string())?;
    let folder = scratch();
    let backtrail = Backtrail::new(beside()?);
    let [before, after] = ["plain.trace", "build.trace"].map(|name| folder.path().join(name));
    for (trace, level) in [(&before, "-O0"), (&after, "-O2")] {
        let source = folder.path().join("templates.cpp");
        if !source.exists() {
            // The workload writes its source.
            workload::compiler(1, folder.path()).map_err(|missing| missing.to_string())?;
        }
        let script = r#"for round in 1 2; do g++ -std=c++17 "$0" -c "$1" -o "$2"; done"#;
        let mut recorded = backtrail.record(trace, &["-F", "999"], &["sh", "-c", script, level]);
        run_to_end(
            recorded
                .args(["templates.cpp", "templates.o"])
                .current_dir(folder.path()),
        )?;
    }
    let out = place::workspace().join("docs/pictures");
    fs::create_dir_all(&out).map_err(|error| error.to_string())?;
    let mut browser = Browser::start(1000, 640).map_err(|missing| missing.to_string())?;
    // The page's names are those of folders; the pictures shall not show this machine's of folders.
    let page = folder.path().join("page.html");
    titled(&backtrail, folder.path(), "build.trace", &page, None)?;
    for (theme, suffix) in [(Theme::Light, "light"), (Theme::Dark, "dark")] {
        browser.prefer(theme);
        browser.open(&page, WHOLE);
        for view in VIEWS {
            show(&mut browser, view);
            if view == "about" {
                browser.value(
                    "[...document.querySelectorAll('dt')].filter(term => term.textContent === 'Machine')\
                     .forEach(term => { term.hidden = term.nextSibling.hidden = true; })",
                );
            }
            taken(&mut browser, &out.join(format!("{view}-{suffix}.png")))?;
        }
        browser.value("document.getElementById('down').click(); document.getElementById('leaves-first').click()");
        show(&mut browser, "flame");
        taken(&mut browser, &out.join(format!("leaves-{suffix}.png")))?;
    }
    let difference = folder.path().join("difference.html");
    titled(
        &backtrail,
        folder.path(),
        "build.trace",
        &difference,
        Some("plain.trace"),
    )?;
    for (theme, suffix) in [(Theme::Light, "light"), (Theme::Dark, "dark")] {
        browser.prefer(theme);
        browser.open(&difference, WHOLE);
        show(&mut browser, "flame");
        taken(&mut browser, &out.join(format!("difference-{suffix}.png")))?;
        show(&mut browser, "functions");
        taken(&mut browser, &out.join(format!("difference-functions-{suffix}.png")))?;
    }
    let waits = waits(&backtrail, folder.path())?;
    for (theme, suffix) in [(Theme::Light, "light"), (Theme::Dark, "dark")] {
        browser.prefer(theme);
        browser.open(&waits, WHOLE);
        show(&mut browser, "flame");
        taken(&mut browser, &out.join(format!("waits-{suffix}.png")))?;
    }
    let stored = stored(&backtrail, folder.path())?;
    browser.prefer(Theme::Light);
    browser.open(&stored, WHOLE);
    show(&mut browser, "flame");
    taken(&mut browser, &out.join("store.png"))?;
    browser.resize(390, 760, true);
    for (theme, suffix) in [(Theme::Light, "light"), (Theme::Dark, "dark")] {
        browser.prefer(theme);
        browser.open(&page, WHOLE);
        show(&mut browser, "functions");
        taken(&mut browser, &out.join(format!("small-{suffix}.png")))?;
    }
    consoles::run(&mut browser, &backtrail, &out)?;
    readme(&mut browser, &backtrail, &after, &page, &out)
}

/// Writes a page; the recordings are named as they are seen from their folder.
fn titled(backtrail: &Backtrail, folder: &Path, trace: &str, page: &Path, other: Option<&str>) -> Result<(), String> {
    let mut report = backtrail.command(["report", trace, "--html"]);
    report.arg(page).current_dir(folder);
    if let Some(other) = other {
        report.args(["--diff", other]);
    }
    run_to_end(&mut report)
}

/// The page of threads that wait for each other and for files.
fn waits(backtrail: &Backtrail, folder: &Path) -> Result<PathBuf, String> {
    let script = "import threading, queue, time, os\n\
        jobs = queue.Queue(2)\n\
        def work():\n    \
            while (job := jobs.get()) is not None:\n        \
                time.sleep(job / 2000); sum(range(20000))\n\
        threads = [threading.Thread(target=work) for _ in range(3)]\n\
        for thread in threads: thread.start()\n\
        for job in range(150):\n    \
            jobs.put(job % 20)\n    \
            with open('jobs', 'ab') as file: file.write(b'x' * 4096); os.fsync(file.fileno())\n\
        for _ in threads: jobs.put(None)\n";
    let mut recorded = backtrail.record(&folder.join("waits.trace"), &["--off-cpu"], &["python3", "-c", script]);
    run_to_end(recorded.current_dir(folder))?;
    let page = folder.join("waits.html");
    titled(backtrail, folder, "waits.trace", &page, None)?;
    Ok(page)
}

/// The page of one version of a service, from a store that has two.
fn stored(backtrail: &Backtrail, folder: &Path) -> Result<PathBuf, String> {
    let packages = readers::python("duckdb").map_err(|missing| missing.to_string())?;
    for (trace, version) in [("plain.trace", "version=1"), ("build.trace", "version=2")] {
        let mut add = backtrail.command(["store", "add", trace, "--to", "fleet", "--service", "compiler"]);
        run_to_end(add.args(["--host", "build", "--label", version]).current_dir(folder))?;
    }
    let page = folder.join("store.html");
    let mut query = backtrail.command(["store", "query", "fleet", "flame", "--where", "version=2", "-o"]);
    query.arg(&page).env("PYTHONPATH", packages).current_dir(folder);
    run_to_end(&mut query)?;
    Ok(page)
}

fn show(browser: &mut Browser, view: &str) {
    if view == "sandwich" {
        show(browser, "functions");
        browser.value(
            "[...document.querySelectorAll('#view-functions td.name button')]\
             .find(button => button.textContent.startsWith('_int_malloc') || button.textContent === 'malloc')?.click()",
        );
    } else {
        browser.value(&format!("document.getElementById('tab-{view}').click()"));
    }
    browser.value("scrollTo(0, 0)");
    // A picture of the screen or two later all is drawn.
    browser.value("new Promise(done => setTimeout(done, 400))");
}

/// The table in a terminal and the flame graph, one below the other.
fn readme(browser: &mut Browser, backtrail: &Backtrail, trace: &Path, page: &Path, out: &Path) -> Result<(), String> {
    browser.prefer(Theme::Light);
    browser.resize(1000, 640, false);
    browser.open(page, WHOLE);
    show(browser, "flame");
    let graph = page.with_file_name("graph.png");
    browser.picture(&graph);
    let mut table = backtrail.command(["report", "--limit", "6"]);
    let table = command::run(table.arg(trace), std::time::Duration::from_secs(60)).map_err(|e| e.to_string())?;
    let text = format!(
        "$ backtrail report build.trace\n{}$ backtrail report build.trace --html build.html",
        table.stdout
    );
    let folder = page.parent().ok_or("a page without a folder")?;
    consoles::drawn(browser, folder, &text, Some("graph.png"), &out.join("report.png"))
}
