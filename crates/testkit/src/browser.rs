//! Chromium without a window, driven through its debugging protocol over a pipe.

use std::collections::VecDeque;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{Missing, scratch};

/// It loads a page, and then some.
const LIMIT: Duration = Duration::from_secs(60);

/// A running browser with one page.
#[derive(Debug)]
pub struct Browser {
    child: Child,
    to: Option<ChildStdin>,
    from: BufReader<ChildStdout>,
    session: Option<String>,
    last: u64,
    events: VecDeque<Value>,
    _profile: TempDir,
}

/// The colours that a page is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Theme {
    /// Dark text on light ground.
    Light,
    /// Light text on dark ground.
    Dark,
}

impl Browser {
    /// Starts the browser with an empty page of this size.
    ///
    /// # Errors
    /// [`Missing`] if Chromium is not installed or does not start here.
    ///
    /// # Panics
    /// If it does not speak its protocol.
    pub fn start(width: u32, height: u32) -> Result<Browser, Missing> {
        let profile = scratch();
        // The protocol is on the file descriptors 3 and 4, which the shell connects.
        let script = "exec chromium --headless --no-sandbox --disable-gpu --disable-background-networking \
                      --disable-component-update --disable-sync --no-first-run --no-default-browser-check \
                      --disable-dev-shm-usage --remote-debugging-pipe --user-data-dir=\"$1\" about:blank 3<&0 4>&1 \
                      </dev/null >/dev/null";
        let found = Command::new("sh")
            .args(["-c", "command -v chromium"])
            .stdout(Stdio::null())
            .status();
        if !found.is_ok_and(|status| status.success()) {
            return Err(Missing("there is no chromium".to_owned()));
        }
        let mut child = Command::new("sh")
            .args(["-c", script, "sh"])
            .arg(profile.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|error| Missing(format!("sh: {error}")))?;
        let to = child.stdin.take();
        let from = BufReader::new(child.stdout.take().expect("it is a pipe"));
        let mut browser = Browser {
            child,
            to,
            from,
            session: None,
            last: 0,
            events: VecDeque::new(),
            _profile: profile,
        };
        let targets = browser
            .call("Target.getTargets", json!({}))
            .map_err(|error| Missing(format!("chromium does not start here: {error}")))?;
        let targets = targets["targetInfos"].as_array().cloned().unwrap_or_default();
        let page = targets.iter().find(|target| target["type"] == "page");
        let page = page.expect("it was started with a page")["targetId"].clone();
        let attached = browser.asked("Target.attachToTarget", json!({"targetId": page, "flatten": true}));
        browser.session = attached["sessionId"].as_str().map(str::to_owned);
        for domain in ["Page", "Runtime", "Network", "Log"] {
            browser.asked(&format!("{domain}.enable"), json!({}));
        }
        browser.resize(width, height, false);
        Ok(browser)
    }

    /// Changes the size of the page.
    pub fn resize(&mut self, width: u32, height: u32, mobile: bool) {
        let metrics = json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": mobile});
        self.asked("Emulation.setDeviceMetricsOverride", metrics);
    }

    /// Asks for light or dark colours.
    pub fn prefer(&mut self, theme: Theme) {
        let value = match theme {
            Theme::Light => "light",
            Theme::Dark => "dark",
        };
        let feature = json!({"name": "prefers-color-scheme", "value": value});
        self.asked("Emulation.setEmulatedMedia", json!({"features": [feature]}));
    }

    /// Opens a file, and waits until an expression is true in it.
    ///
    /// # Panics
    /// If that takes longer than a minute.
    pub fn open(&mut self, file: &Path, ready: &str) {
        let file = fs::canonicalize(file).expect("the page exists");
        self.asked("Page.navigate", json!({"url": format!("file://{}", file.display())}));
        self.wait_for(ready);
    }

    /// Waits until an expression is true.
    ///
    /// # Panics
    /// If that takes longer than a minute.
    pub fn wait_for(&mut self, expression: &str) {
        let start = Instant::now();
        while self.value(&format!("Boolean({expression})")) != Value::Bool(true) {
            assert!(
                start.elapsed() < LIMIT,
                "still not true: {expression}; {:?}",
                self.faults()
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// The value of an expression; that of a promise once it is fulfilled.
    ///
    /// # Panics
    /// If it throws.
    pub fn value(&mut self, expression: &str) -> Value {
        let request = json!({"expression": expression, "returnByValue": true, "awaitPromise": true});
        let mut answer = self.asked("Runtime.evaluate", request);
        assert!(
            answer["exceptionDetails"].is_null(),
            "{expression}: {}",
            answer["exceptionDetails"]
        );
        answer["result"]["value"].take()
    }

    /// Presses and releases the mouse at each of these places, with the button held in between.
    pub fn drag(&mut self, from: (f64, f64), to: (f64, f64)) {
        let mut mouse = |kind: &str, (x, y): (f64, f64), buttons: u32| {
            let event = json!({"type": kind, "x": x, "y": y, "button": "left", "buttons": buttons, "clickCount": 1});
            self.asked("Input.dispatchMouseEvent", event);
        };
        mouse("mouseMoved", from, 0);
        mouse("mousePressed", from, 1);
        for step in 1..=5 {
            let part = f64::from(step) / 5.0;
            mouse(
                "mouseMoved",
                (from.0 + (to.0 - from.0) * part, from.1 + (to.1 - from.1) * part),
                1,
            );
        }
        mouse("mouseReleased", to, 0);
    }

    /// Clicks at a place.
    pub fn click(&mut self, at: (f64, f64)) {
        self.drag(at, at);
    }

    /// Presses a key that is named as in the DOM, such as `ArrowUp` or `c`.
    pub fn key(&mut self, key: &str) {
        let text = if key.len() == 1 { key } else { "" };
        for kind in ["keyDown", "keyUp"] {
            self.asked(
                "Input.dispatchKeyEvent",
                json!({"type": kind, "key": key, "text": text}),
            );
        }
    }

    /// Writes a picture of the page as PNG, and returns its bytes.
    ///
    /// # Panics
    /// If the file cannot be written.
    pub fn picture(&mut self, file: &Path) -> u64 {
        let picture = self.asked("Page.captureScreenshot", json!({"format": "png"}));
        let bytes = STANDARD.decode(picture["data"].as_str().unwrap_or_default());
        let bytes = bytes.expect("it is base64");
        fs::write(file, &bytes).expect("the folder can be written");
        bytes.len() as u64
    }

    /// The addresses that have been requested so far.
    pub fn requests(&mut self) -> Vec<String> {
        let requests = self.of("Network.requestWillBeSent");
        let url = |event: &Value| {
            event["params"]["request"]["url"]
                .as_str()
                .unwrap_or_default()
                .to_owned()
        };
        requests.iter().map(url).collect()
    }

    /// Exceptions and entries of the console so far.
    pub fn faults(&mut self) -> Vec<String> {
        let mut faults = self.of("Runtime.exceptionThrown");
        faults.extend(self.of("Log.entryAdded"));
        faults.extend(self.of("Page.javascriptDialogOpening"));
        faults.iter().map(|event| event["params"].to_string()).collect()
    }

    fn of(&mut self, method: &str) -> Vec<Value> {
        // An answer comes after the events before it.
        self.value("0");
        self.events
            .iter()
            .filter(|event| event["method"] == method)
            .cloned()
            .collect()
    }

    fn asked(&mut self, method: &str, parameters: Value) -> Value {
        self.call(method, parameters)
            .unwrap_or_else(|error| panic!("chromium: {method}: {error}"))
    }

    fn call(&mut self, method: &str, parameters: Value) -> Result<Value, String> {
        self.last += 1;
        let mut message = json!({"id": self.last, "method": method, "params": parameters});
        if let Some(session) = &self.session {
            message["sessionId"] = json!(session);
        }
        let mut bytes = message.to_string().into_bytes();
        bytes.push(0);
        let to = self.to.as_mut().ok_or("it is gone")?;
        to.write_all(&bytes)
            .and_then(|()| to.flush())
            .map_err(|error| error.to_string())?;
        loop {
            let mut message = self.receive()?;
            if message["id"] != self.last {
                self.events.push_back(message);
            } else if message["error"].is_null() {
                return Ok(message["result"].take());
            } else {
                return Err(message["error"].to_string());
            }
        }
    }

    fn receive(&mut self) -> Result<Value, String> {
        let mut bytes = Vec::new();
        self.from.read_until(0, &mut bytes).map_err(|error| error.to_string())?;
        if bytes.pop() != Some(0) {
            return Err("it has ended".to_owned());
        }
        serde_json::from_slice(&bytes).map_err(|error| error.to_string())
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        self.session = None;
        // With the pipe's end it ends by itself, too.
        let _ = self.call("Browser.close", json!({}));
        self.to = None;
        let _ = self.child.wait();
    }
}
