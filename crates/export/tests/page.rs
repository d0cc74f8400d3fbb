//! What the page does, in a browser.

use std::path::PathBuf;

use backtrail_export::Samples;
use backtrail_export::page::{self, Recording};
use backtrail_profile::Measure;
use backtrail_testkit::browser::{Browser, Theme};
use backtrail_testkit::{TempDir, available, scratch};
use serde_json::{Value, json};

use crate::invented::{HOSTILE, Stack, hostile, samples};

const READY: &str = "performance.getEntriesByName('all-samples').length";

struct Page {
    browser: Browser,
    /// Whether the browser refuses what the test tries, and says so.
    refuses: bool,
    _folder: TempDir,
}

impl Page {
    /// `None` without a browser.
    fn open(samples: &Samples, title: &str, other: Option<&Samples>) -> Option<Page> {
        let mut browser = available(Browser::start(1000, 700))?;
        let folder = scratch();
        let path: PathBuf = folder.path().join("page.html");
        let mut out = Vec::new();
        let other = other.map(|samples| Recording {
            samples,
            title: "other",
        });
        page::write(Recording { samples, title }, other, &mut out).expect("memory can be written");
        std::fs::write(&path, out).expect("the folder can be written");
        browser.open(&path, READY);
        Some(Page {
            browser,
            refuses: false,
            _folder: folder,
        })
    }

    fn show(&mut self, view: &str) {
        self.browser
            .value(&format!("document.getElementById('tab-{view}').click()"));
    }

    /// Function, self, total.
    fn functions(&mut self) -> Value {
        self.show("functions");
        self.browser.value(
            "[...document.querySelectorAll('#view-functions tbody tr')].map(row => \
             [row.querySelector('.name').textContent, Number(row.cells[1].textContent), Number(row.cells[3].textContent)])",
        )
    }

    fn text(&mut self, id: &str) -> String {
        let text = self
            .browser
            .value(&format!("document.getElementById('{id}').textContent"));
        text.as_str().expect("a text").to_owned()
    }

    /// Types into a field.
    fn enter(&mut self, id: &str, text: &str) {
        let text = json!(text);
        self.browser.value(&format!(
            "(() => {{ const field = document.getElementById('{id}'); field.value = {text}; \
             for (const kind of ['input', 'change']) field.dispatchEvent(new Event(kind, {{ bubbles: true }})); }})()"
        ));
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            let mut faults = self.browser.faults();
            faults.retain(|fault| !(self.refuses && fault.contains("Content Security Policy")));
            assert_eq!(faults, Vec::<String>::new());
            let mut requests = self.browser.requests();
            // What is refused is listed, too.
            requests.retain(|url| !(self.refuses && url.starts_with("data:")));
            assert_eq!(requests.len(), 1, "{requests:?}");
        }
    }
}

fn example() -> Samples {
    let stack = |thread, names, from_ms, samples| Stack {
        thread,
        names,
        from_ms,
        samples,
    };
    samples(&[
        stack(1, &["main", "parse", "read"], 0, 400),
        stack(1, &["main", "parse"], 400, 100),
        stack(1, &["main", "emit", "write"], 500, 300),
        stack(2, &["worker", "fib", "fib", "fib"], 0, 200),
        stack(3, &["main", "read"], 900, 100),
    ])
}

#[test]
fn hostile_names_do_nothing() {
    let Some(mut page) = Page::open(&hostile(), HOSTILE, Some(&hostile())) else {
        return;
    };
    for view in ["flame", "functions", "threads", "endings", "about"] {
        page.show(view);
    }
    page.show("functions");
    page.browser
        .value("document.querySelector('#view-functions td.name button').click()");
    page.browser.click((400.0, 150.0));
    let found = page.browser.value(
        "({ hacked: typeof hacked, scripts: document.scripts.length, images: document.images.length, \
         hostile: /[\\u202e\\u001b\\u0007\\u2028]/.test(document.body.textContent + document.title), \
         shown: document.body.textContent.includes('<U+202E>') })",
    );
    let wanted = json!({"hacked": "undefined", "scripts": 1, "images": 0, "hostile": false, "shown": true});
    assert_eq!(found, wanted);
}

/// The page's policy holds, not only its good manners.
#[test]
fn nothing_can_be_fetched_or_added() {
    let Some(mut page) = Page::open(&example(), "example", None) else {
        return;
    };
    page.refuses = true;
    let tried = page.browser.value(
        "(async () => { const script = document.createElement('script'); script.textContent = 'window.added = 1'; \
         document.body.append(script); const image = new Image(); \
         const refused = await new Promise(done => { image.onerror = () => done(true); image.onload = () => done(false); \
         image.src = 'data:image/gif;base64,R0lGODlhAQABAAAAACw='; }); \
         let fetched = 'no'; try { await fetch('data:,x'); fetched = 'yes'; } catch {} \
         return { added: typeof added, refused, fetched }; })()",
    );
    assert_eq!(tried, json!({"added": "undefined", "refused": true, "fetched": "no"}));
}

#[test]
fn functions_count_once_for_a_sample() {
    let Some(mut page) = Page::open(&example(), "example", None) else {
        return;
    };
    let wanted = json!([
        ["read", 500, 500],
        ["write", 300, 300],
        ["fib", 200, 200],
        ["parse", 100, 500],
        ["main", 0, 900],
        ["emit", 0, 300],
        ["worker", 0, 200],
    ]);
    assert_eq!(page.functions(), wanted);
    assert_eq!(page.text("title"), "example");
    assert!(
        page.text("summary")
            .starts_with("1100 samples over 1.00 s, 0 lost, 100.0 % complete")
    );
}

#[test]
fn times_off_the_cpu_are_printed_as_times() {
    let mut waits = example();
    waits.measure = Some(Measure {
        name: "off-cpu".to_owned(),
        is_time: true,
    });
    waits.rows.iter_mut().for_each(|row| row.weight = 1_500);
    let Some(mut page) = Page::open(&waits, "waits", None) else {
        return;
    };
    assert!(page.text("summary").starts_with("1.650 s over 1.00 s, 0 lost"));
    let functions = page.functions();
    // In milliseconds.
    assert!(
        functions.as_array().is_some_and(
            |rows| rows.contains(&json!(["fib", 300.0, 300.0])) || rows.contains(&json!(["fib", 300, 300]))
        ),
        "{functions}"
    );
    let headings = page
        .browser
        .value("[...document.querySelectorAll('#view-functions th')].map(heading => heading.textContent).join(' ')");
    assert!(
        headings.as_str().is_some_and(|text| text.contains("self ms")),
        "{headings}"
    );
}

/// The colour of the row of all samples, just above its lower edge, in each column.
const COLUMNS: &str = "(() => { \
    const canvas = document.querySelector('#time-rows canvas'), scale = devicePixelRatio; \
    const labels = Math.min(210, Math.round(canvas.parentElement.clientWidth * 0.28)); \
    const width = Math.floor(canvas.width / scale - labels) - 1; \
    const pixels = canvas.getContext('2d') \
        .getImageData((labels + 1) * scale, (18 + 40 - 3) * scale, width * scale, 1).data; \
    const blue = []; \
    for (let at = 0; at < pixels.length; at += 4) blue.push(pixels[at + 2] > pixels[at] + 60); \
    return blue.filter(Boolean).length / blue.length; })()";

#[test]
fn a_busy_thread_has_no_gaps_on_the_time_line() {
    let stack = Stack {
        thread: 1,
        names: &["main"],
        from_ms: 0,
        samples: 100,
    };
    let mut busy = samples(&[stack]);
    busy.origin.frequency = Some(1_000);
    let Some(mut page) = Page::open(&busy, "busy", None) else {
        return;
    };
    let filled = page.browser.value(COLUMNS).as_f64().expect("a share");
    assert!(filled > 0.99, "{filled}");
    // Events are moments.
    busy.origin.frequency = None;
    let Some(mut page) = Page::open(&busy, "events", None) else {
        return;
    };
    let filled = page.browser.value(COLUMNS).as_f64().expect("a share");
    assert!((0.05..0.3).contains(&filled), "{filled}");
}

#[test]
fn a_recording_without_samples_shows_what_it_is_of() {
    let nothing = Samples {
        notes: vec!["only samples of process none".to_owned()],
        ..samples(&[])
    };
    let Some(mut page) = Page::open(&nothing, "nothing", None) else {
        return;
    };
    assert!(page.text("summary").starts_with("0 samples"));
    assert!(page.text("view-about").contains("only samples of process none"));
    let shown = page.browser.value(
        "['view-about', 'view-flame', 'time'].map(id => document.getElementById(id).getClientRects().length > 0)",
    );
    assert_eq!(shown, json!([true, false, false]));
}

#[test]
fn a_time_and_a_thread_are_selected() {
    let Some(mut page) = Page::open(&example(), "example", None) else {
        return;
    };
    page.enter("from", "0.45");
    page.enter("to", "0.6");
    let rows = page.functions();
    let counts: Vec<(&str, i64)> = rows
        .as_array()
        .expect("rows")
        .iter()
        .map(|row| (row[0].as_str().expect("a name"), row[2].as_i64().expect("a number")))
        .collect();
    assert_eq!(
        counts.iter().map(|(name, _)| *name).collect::<Vec<_>>(),
        ["write", "parse", "main", "emit"]
    );
    // Times are kept in steps, so a sample at the border may be on either side.
    for (name, wanted) in [("write", 100), ("parse", 50), ("main", 150)] {
        let found = counts.iter().find(|(known, _)| *known == name).expect("it is there").1;
        assert!((found - wanted).abs() <= 1, "{name}: {found}");
    }
    // Both ends of the filter's line: what it lets through, and how to remove it.
    assert!(
        page.text("filters").contains("of 1100 samples"),
        "{}",
        page.text("filters")
    );
    page.browser.value("document.querySelector('#filters button').click()");
    assert_eq!(page.text("filters"), "");

    page.show("threads");
    page.browser.value(
        "[...document.querySelectorAll('#view-threads td.name button')].find(b => b.textContent === 'second').click()",
    );
    assert_eq!(page.functions(), json!([["fib", 200, 200], ["worker", 0, 200]]));
    page.browser.value("document.querySelector('#filters button').click()");

    // By hand: the row of all samples is the first of the time line.
    let box_of = page.browser.value(
        "(() => { const b = document.querySelector('#time-rows canvas').getBoundingClientRect(); return [b.x, b.y, b.width]; })()",
    );
    let number = |index: usize| box_of[index].as_f64().expect("a number");
    let (x, y, width) = (number(0), number(1), number(2));
    page.browser
        .drag((x + width * 0.5, y + 30.0), (x + width - 2.0, y + 30.0));
    let line = page.text("filters");
    assert!(line.contains(" s"), "{line}");
    let mut rows = page.functions();
    let first = rows[0].take();
    assert_eq!(first[0], "write", "{first}");
    page.browser
        .value("document.querySelector('#time-rows canvas').focus()");
    page.browser.key("Escape");
    assert_eq!(page.text("filters"), "");
}

#[test]
fn callers_and_callees() {
    let Some(mut page) = Page::open(&example(), "example", None) else {
        return;
    };
    page.show("functions");
    page.browser.value(
        "[...document.querySelectorAll('#view-functions td.name button')].find(b => b.textContent === 'read').click()",
    );
    let tables = page.browser.value(
        "[...document.querySelectorAll('#view-sandwich table')].map(table => [...table.tBodies[0].rows].map(row => \
         [row.cells[1].textContent, row.cells[2].textContent]))",
    );
    assert_eq!(tables, json!([[["400", "parse"], ["100", "main"]], []]));
    let said = page
        .browser
        .value("document.querySelector('#view-sandwich p').textContent");
    assert_eq!(said, "program · read.c:7 · self 500 (45.45 %), total 500 (45.45 %)");
    page.browser.value(
        "[...document.querySelectorAll('#view-sandwich td.name button')].find(b => b.textContent === 'main').click()",
    );
    let callees = page.browser.value(
        "[...document.querySelectorAll('#view-sandwich table')[1].tBodies[0].rows].map(row => \
         [row.cells[1].textContent, row.cells[2].textContent])",
    );
    assert_eq!(callees, json!([["500", "parse"], ["300", "emit"], ["100", "read"]]));
}

#[test]
fn keys_move_zoom_and_search() {
    let Some(mut page) = Page::open(&example(), "example", None) else {
        return;
    };
    page.browser.value("document.querySelector('#flame canvas').focus()");
    let said = |page: &mut Page, key: &str| {
        page.browser.key(key);
        page.text("flame-detail")
    };
    assert!(said(&mut page, "ArrowUp").starts_with("first · 1000 samples, 90.91 %"));
    assert!(said(&mut page, "ArrowUp").starts_with("main · 800 samples, 72.73 % · in program"));
    assert!(said(&mut page, "ArrowUp").starts_with("parse · 500 samples"));
    assert!(said(&mut page, "ArrowLeft").starts_with("emit · 300 samples"));
    assert!(said(&mut page, "ArrowDown").starts_with("main"));
    // A zoom ends with the frame at the canvas's left edge, where a click hits it.
    page.browser.key("ArrowUp");
    page.browser.key("Enter");
    std::thread::sleep(std::time::Duration::from_millis(400));
    let place = page.browser.value(
        "(() => { const b = document.querySelector('#flame canvas').getBoundingClientRect(); return [b.x, b.bottom]; })()",
    );
    let edge = (
        place[0].as_f64().expect("a number") + 3.0,
        place[1].as_f64().expect("a number") - 18.0 * 3.5,
    );
    page.browser.click(edge);
    assert!(
        page.text("flame-detail").starts_with("parse"),
        "{}",
        page.text("flame-detail")
    );
    page.browser.key("c");
    assert_eq!(
        page.browser
            .value("document.querySelector('#view-sandwich h2').textContent"),
        "parse"
    );

    page.browser.value("document.activeElement.blur()");
    page.browser.key("/");
    assert_eq!(page.browser.value("document.activeElement.id"), "search");
    page.enter("search", "/^(re|wri)/");
    page.browser.wait_for("document.getElementById('matches').textContent");
    // 500 samples of read and 300 of write.
    assert_eq!(page.text("matches"), "72.73 % of samples");
    assert_eq!(page.functions(), json!([["read", 500, 500], ["write", 300, 300]]));
}

#[test]
fn a_difference_is_by_share_and_by_samples() {
    let stack = |names, samples| Stack {
        thread: 1,
        names,
        from_ms: 0,
        samples,
    };
    let before = samples(&[stack(&["main", "slow"], 100), stack(&["main", "same"], 100)]);
    let after = samples(&[
        stack(&["main", "slow"], 100),
        stack(&["main", "same"], 300),
        stack(&["main", "new"], 100),
    ]);
    let Some(mut page) = Page::open(&after, "after", Some(&before)) else {
        return;
    };
    page.show("functions");
    let rows = page.browser.value(
        "[...document.querySelectorAll('#view-functions tbody tr')].map(row => [...row.cells].slice(0, 4)\
         .map(cell => cell.textContent).concat(row.querySelector('.name').textContent))",
    );
    let wanted = json!([
        ["60.00", "300", "+10.00", "+200", "same"],
        ["20.00", "100", "−30.00", "0", "slow"],
        ["20.00", "100", "+20.00", "+100", "new"],
        ["0.00", "0", "0.00", "0", "main"],
    ]);
    let mut rows: Vec<Value> = rows.as_array().expect("rows").clone();
    let mut wanted: Vec<Value> = wanted.as_array().expect("rows").clone();
    rows.sort_by_key(Value::to_string);
    wanted.sort_by_key(Value::to_string);
    assert_eq!(rows, wanted);
    assert!(page.text("summary").ends_with("compared with other"));

    // `slow` is less by share, and as much by samples: another colour.
    page.show("flame");
    let colour = |page: &mut Page| {
        std::thread::sleep(std::time::Duration::from_millis(300));
        page.browser.value(
            "(() => { const c = document.querySelector('#flame canvas'), one = document.createElement('canvas'); \
             const context = one.getContext('2d'); context.drawImage(c, c.width - 30, c.height - 18 * 4 + 3, 1, 1, 0, 0, 1, 1); \
             const pixel = context.getImageData(0, 0, 1, 1).data; return pixel[2] - pixel[0]; })()",
        )
    };
    assert!(colour(&mut page).as_i64().expect("a number") > 20, "blue");
    page.browser.value("document.getElementById('by-count').click()");
    assert!(colour(&mut page).as_i64().expect("a number") < 10, "grey");
}

#[test]
fn text_has_contrast_in_both_themes() {
    let Some(mut page) = Page::open(&example(), "example", None) else {
        return;
    };
    for theme in [Theme::Light, Theme::Dark] {
        page.browser.prefer(theme);
        page.show("functions");
        // The contrast of WCAG 2 between the text of elements and the ground below it.
        let least = page.browser.value(
            "(() => { const parse = text => text.match(/[\\d.]+/g).map(Number); \
             const light = ([r, g, b]) => { const part = c => (c /= 255) <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4; \
             return 0.2126 * part(r) + 0.7152 * part(g) + 0.0722 * part(b); }; \
             const ground = e => { for (; e; e = e.parentElement) { const c = parse(getComputedStyle(e).backgroundColor); \
             if (c.length < 4 || c[3] > 0) return c; } return [255, 255, 255]; }; \
             let least = [99, '']; \
             for (const e of document.querySelectorAll('h1, p, button, td, th, caption, label, span, dt, dd')) { \
             if (!e.offsetParent || e.disabled) continue; \
             const [a, b] = [light(parse(getComputedStyle(e).color)), light(ground(e))].sort((x, y) => y - x); \
             const contrast = (a + 0.05) / (b + 0.05); if (contrast < least[0]) least = [contrast, e.outerHTML.slice(0, 80)]; } \
             return least; })()",
        );
        assert!(least[0].as_f64().expect("a number") >= 4.5, "{theme:?}: {least}");
    }
}

#[test]
fn a_small_screen_needs_no_scrolling_sideways() {
    let Some(mut page) = Page::open(
        &example(),
        "a recording with a name that is rather long for a telephone",
        None,
    ) else {
        return;
    };
    page.browser.resize(360, 700, true);
    for view in ["flame", "functions", "sandwich", "threads", "endings", "about"] {
        page.show(view);
        let wide = page.browser.value("document.documentElement.scrollWidth");
        assert!(wide.as_u64().expect("a number") <= 360, "{view}: {wide}");
    }
}
