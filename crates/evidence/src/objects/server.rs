//! The server, in Python.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use backtrail_testkit::command::{self, Running};
use serde_json::{Value, json};

/// A server that runs as long as the value lives.
pub(super) struct Server {
    address: String,
    key: String,
    pub(super) secret: String,
    _running: Running,
}

impl Server {
    pub(super) fn start(packages: &Path) -> Result<Server, String> {
        let mut python = Command::new("python3");
        python
            .args(["-c", include_str!("server.py")])
            .env("PYTHONPATH", packages);
        let running = command::start(&mut python, Duration::from_secs(3600)).map_err(|missing| missing.to_string())?;
        if !running.wait_for_output("}\n") {
            return Err(running.finish().describe());
        }
        let ready: Value = serde_json::from_str(&running.stdout_so_far()).map_err(|error| error.to_string())?;
        let text = |name: &str| ready[name].as_str().unwrap_or_default().to_owned();
        Ok(Server {
            address: text("endpoint").trim_start_matches("http://").to_owned(),
            key: text("key"),
            secret: text("secret"),
            _running: running,
        })
    }

    /// Gives a command the server and the credentials.
    pub(super) fn surroundings(&self, command: &mut Command) {
        command
            .env("AWS_ENDPOINT_URL", format!("http://{}", self.address))
            .env("AWS_ALLOW_HTTP", "true")
            .env("AWS_REGION", "us-east-1")
            .env("AWS_ACCESS_KEY_ID", &self.key)
            .env("AWS_SECRET_ACCESS_KEY", &self.secret)
            .env_remove("AWS_SESSION_TOKEN");
    }

    /// Answers all requests wrongly for a time.
    pub(super) fn fault(&self, fault: &str, seconds: u32) -> Result<(), String> {
        let command = json!({"fault": fault, "seconds": seconds}).to_string();
        self.control(&command).map(drop)
    }

    /// Copies the objects below a prefix into a folder.
    pub(super) fn copy(&self, prefix: &str, folder: &Path) -> Result<(), String> {
        let command = json!({"copy": prefix, "to": folder.display().to_string()}).to_string();
        self.control(&command).map(drop)
    }

    /// Returns what the server has counted.
    pub(super) fn control(&self, command: &str) -> Result<Value, String> {
        let ask = || -> std::io::Result<String> {
            let mut stream = TcpStream::connect(&self.address)?;
            let length = command.len();
            write!(
                stream,
                "POST /control HTTP/1.1\r\nHost: {}\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{command}",
                self.address
            )?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer)?;
            Ok(answer)
        };
        let answer = ask().map_err(|error| error.to_string())?;
        let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
        serde_json::from_str(body).map_err(|error| format!("{error}: {answer}"))
    }
}
