//! A browser without a window, spoken to by the DevTools protocol over a pipe.

use std::{
    fs::{File, OpenOptions},
    io::{BufRead, BufReader, Write},
    path::Path,
    process::{Child, Command, Stdio},
    sync::mpsc::{Receiver, channel},
    thread,
    time::{Duration, Instant},
};

use serde_json::{Value, json};

const BROWSERS: [&str; 3] = ["chromium", "chromium-browser", "google-chrome"];
const PATIENCE: Duration = Duration::from_secs(30);

/// A browser with one page.
pub struct Browser {
    child: Child,
    to: File,
    from: Receiver<Value>,
    session: String,
    last: u64,
    /// What the page complained of.
    pub complaints: Vec<String>,
}

impl Browser {
    /// The one that is installed, started by `command`, which runs `sh`; its files go into `directory`.
    pub fn start(mut command: Command, browser: &str, directory: &Path) -> Self {
        let pipes = ["to", "from"].map(|name| directory.join(name));
        assert!(Command::new("mkfifo").args(&pipes).status().unwrap().success());
        // Both ends at once, so that no opening waits for the other.
        let [to, from] =
            pipes.each_ref().map(|pipe| OpenOptions::new().read(true).write(true).open(pipe).unwrap());
        command.args(["-c", "exec \"$0\" \"$@\" 3<\"$UNDERPASS_TO\" 4>\"$UNDERPASS_FROM\"", browser]);
        command.args(["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]);
        command.args(["--no-first-run", "--disable-extensions", "--disable-background-networking"]);
        command.args(["--remote-debugging-pipe", "--window-size=1200,1600"]);
        command.arg(format!("--user-data-dir={}", directory.join("profile").display())).arg("about:blank");
        command.env("UNDERPASS_TO", &pipes[0]).env("UNDERPASS_FROM", &pipes[1]).env("HOME", directory);
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let (sender, messages) = channel();
        thread::spawn(move || {
            for message in BufReader::new(from).split(0) {
                let Ok(message) = message else { return };
                if sender.send(serde_json::from_slice(&message).unwrap_or_default()).is_err() {
                    return;
                }
            }
        });
        let (session, complaints) = (String::new(), Vec::new());
        let mut browser = Self { child, to, from: messages, session, last: 0, complaints };
        let page = browser.call("Target.createTarget", json!({ "url": "about:blank" }));
        let attach = json!({ "targetId": page["targetId"], "flatten": true });
        let attached = browser.call("Target.attachToTarget", attach);
        browser.session = attached["sessionId"].as_str().unwrap().to_owned();
        for domain in ["Page", "Runtime", "Log"] {
            browser.call(&format!("{domain}.enable"), json!({}));
        }
        browser
    }

    pub fn call(&mut self, method: &str, parameters: Value) -> Value {
        self.last += 1;
        let mut request = json!({ "id": self.last, "method": method, "params": parameters });
        if !self.session.is_empty() {
            request["sessionId"] = self.session.clone().into();
        }
        let mut bytes = serde_json::to_vec(&request).unwrap();
        bytes.push(0);
        self.to.write_all(&bytes).unwrap();
        loop {
            let message =
                self.from.recv_timeout(PATIENCE).unwrap_or_else(|_| panic!("no answer to {method}"));
            self.hear(&message);
            if message["id"] == self.last {
                assert!(message.get("error").is_none(), "{method}: {message}");
                return message["result"].clone();
            }
        }
    }

    /// Keeps what is wrong.
    fn hear(&mut self, message: &Value) {
        let parameters = &message["params"];
        let wrong = match message["method"].as_str() {
            Some("Runtime.exceptionThrown") => true,
            Some("Runtime.consoleAPICalled") => {
                matches!(parameters["type"].as_str(), Some("error" | "warning" | "assert"))
            }
            Some("Log.entryAdded") => {
                matches!(parameters["entry"]["level"].as_str(), Some("error" | "warning"))
            }
            _ => false,
        };
        if wrong {
            self.complaints.push(parameters.to_string());
        }
    }

    pub fn evaluate(&mut self, expression: &str) -> Value {
        let asked = json!({ "expression": expression, "returnByValue": true });
        let told = self.call("Runtime.evaluate", asked);
        assert!(told.get("exceptionDetails").is_none(), "{expression}: {told}");
        told["result"]["value"].clone()
    }

    /// The text of an element, once `enough` of it is there.
    pub fn text(&mut self, element: &str, enough: impl Fn(&str) -> bool) -> String {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let text = self.evaluate(&format!("document.getElementById('{element}')?.textContent ?? ''"));
            let text = text.as_str().unwrap_or_default().to_owned();
            if enough(&text) {
                return text;
            }
            assert!(Instant::now() < deadline, "#{element}: {text}; {:?}", self.complaints);
            thread::sleep(Duration::from_millis(100));
        }
    }
}

/// A browser that is installed.
pub fn installed() -> Option<&'static str> {
    let there = |browser: &&str| {
        Command::new(browser).arg("--version").output().is_ok_and(|out| out.status.success())
    };
    BROWSERS.into_iter().find(there)
}

impl Browser {
    /// Waits until an expression is true.
    pub fn wait(&mut self, expression: &str) {
        let deadline = Instant::now() + PATIENCE;
        while self.evaluate(expression) != true {
            assert!(Instant::now() < deadline, "never {expression}; {:?}", self.complaints);
            thread::sleep(Duration::from_millis(100));
        }
    }

    /// Takes pictures of the page at 400 and at 1,280 pixels, light and dark, and looks whether it fits. They go where
    /// `UNDERPASS_SCREENSHOTS` says, as `NAME-400-dark.png`.
    pub fn shoot(&mut self, name: &str) {
        let mut papers = Vec::new();
        for (width, scheme) in [(400, "light"), (400, "dark"), (1280, "light"), (1280, "dark")] {
            let size = json!({ "width": width, "height": 900, "deviceScaleFactor": 1, "mobile": false });
            self.call("Emulation.setDeviceMetricsOverride", size);
            let media = json!({ "features": [{ "name": "prefers-color-scheme", "value": scheme }] });
            self.call("Emulation.setEmulatedMedia", media);
            self.wait(&format!("innerWidth === {width}"));
            let wide = self.evaluate("document.documentElement.scrollWidth");
            assert!(wide.as_u64() <= Some(width), "{name}: {wide} pixels in a window of {width}");
            papers.push(self.evaluate("getComputedStyle(document.body).backgroundColor"));
            let height = self.evaluate("document.documentElement.scrollHeight");
            let shot = self.call(
                "Page.captureScreenshot",
                json!({ "format": "png", "captureBeyondViewport": true, "clip": {
                    "x": 0, "y": 0, "width": width, "scale": 1,
                    "height": height,
                } }),
            );
            let png = decoded(shot["data"].as_str().unwrap());
            // The width, in the header chunk of a PNG.
            assert_eq!(png[16..20], (width as u32).to_be_bytes(), "{name} {width} {scheme}");
            if let Some(directory) = std::env::var_os("UNDERPASS_SCREENSHOTS") {
                std::fs::write(Path::new(&directory).join(format!("{name}-{width}-{scheme}.png")), png)
                    .unwrap();
            }
        }
        assert!(papers[0] == papers[2] && papers[1] == papers[3] && papers[0] != papers[1], "{papers:?}");
    }
}

/// The bytes of base64.
fn decoded(text: &str) -> Vec<u8> {
    let digits = text.bytes().filter_map(|digit| match digit {
        b'A'..=b'Z' => Some(digit - b'A'),
        b'a'..=b'z' => Some(digit - b'a' + 26),
        b'0'..=b'9' => Some(digit - b'0' + 52),
        b'+' => Some(62),
        b'/' => Some(63),
        _ => None,
    });
    let (mut bytes, mut word, mut bits) = (Vec::new(), 0_u32, 0);
    for digit in digits {
        word = word << 6 | u32::from(digit);
        bits += 6;
        if bits >= 8 {
            bits -= 8;
            bytes.push((word >> bits) as u8);
        }
    }
    bytes
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
