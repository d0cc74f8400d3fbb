//! What a page of the book has its reader write and run.

use std::fs;
use std::path::Path;

use backtrail_testkit::readers;

use super::shape::OMITTED;

use pulldown_cmark::{CodeBlockKind, Event, Options, Parser, Tag, TagEnd};

pub(super) struct Page {
    pub(super) blocks: Vec<Block>,
}

pub(super) enum Block {
    File { name: String, text: String },
    Console(Console),
}

pub(super) struct Console {
    pub(super) line: usize,
    pub(super) commands: Vec<CommandLine>,
    /// One of its commands must fail.
    pub(super) fails: bool,
    /// The page says so, and why.
    pub(super) is_not_run: bool,
    /// What of its output is compared.
    pub(super) compared: Compared,
    needs: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Compared {
    All,
    /// All but the rows of tables: which functions a compiler spends its time in.
    AllButRows,
    /// Nothing: the page shows commands without their output.
    Nothing,
}

pub(super) struct CommandLine {
    pub(super) line: String,
    pub(super) output: Vec<String>,
}

impl Page {
    pub(super) fn read(text: &str) -> Result<Self, String> {
        let mut blocks = Vec::new();
        let mut comments: Vec<String> = Vec::new();
        // The inline code that ended the last paragraph, and whether a colon came after it.
        let (mut code, mut named) = (None, false);
        let mut open: Option<(String, String, usize)> = None;
        for (event, place) in Parser::new_ext(text, Options::ENABLE_TABLES).into_offset_iter() {
            match event {
                Event::Html(html) => comments.extend(html.lines().filter_map(comment)),
                Event::Start(Tag::Paragraph) => (code, named) = (None, false),
                Event::Code(text) => (code, named) = (Some(text.into_string()), false),
                Event::Text(text) => match &mut open {
                    Some((_, body, _)) => body.push_str(&text),
                    None => named = &*text == ":",
                },
                Event::Start(Tag::CodeBlock(kind)) => {
                    let language = match kind {
                        CodeBlockKind::Fenced(language) => language.into_string(),
                        CodeBlockKind::Indented => String::new(),
                    };
                    let line = text[..place.start].matches('\n').count() + 1;
                    open = Some((language, String::new(), line));
                }
                Event::End(TagEnd::CodeBlock) => {
                    let Some((language, body, line)) = open.take() else {
                        continue;
                    };
                    if language == "console" {
                        blocks.push(Block::Console(Console::read(&body, line, &comments)?));
                        comments.clear();
                    } else if let (Some(name), true) = (code.take(), named) {
                        blocks.push(Block::File { name, text: body });
                    }
                    named = false;
                }
                _ => {}
            }
        }
        Ok(Self { blocks })
    }

    /// Whether it takes permission to sample.
    pub(super) fn records(&self) -> bool {
        self.blocks.iter().any(|block| match block {
            Block::Console(console) => console
                .commands
                .iter()
                .any(|command| command.line.contains("backtrail record ")),
            Block::File { .. } => false,
        })
    }
}

impl CommandLine {
    /// One that the page does not show.
    fn given(line: &str) -> Self {
        Self {
            line: line.to_owned(),
            output: vec![OMITTED.to_owned()],
        }
    }
}

impl Console {
    fn read(body: &str, line: usize, comments: &[String]) -> Result<Self, String> {
        let mut console = Self {
            line,
            commands: Vec::new(),
            fails: false,
            is_not_run: false,
            compared: Compared::All,
            needs: Vec::new(),
        };
        for comment in comments {
            match comment.split_once(':').map(|(word, rest)| (word, rest.trim())) {
                Some(("not run", reason)) if !reason.is_empty() => console.is_not_run = true,
                Some(("needs", list)) => console.needs = list.split_whitespace().map(str::to_owned).collect(),
                Some(("fails", _)) => console.fails = true,
                Some(("given", command)) => console.commands.push(CommandLine::given(command)),
                Some(("output", "not shown")) => console.compared = Compared::Nothing,
                Some(("rows", "differ")) => console.compared = Compared::AllButRows,
                _ => return Err(format!("line {line}: unknown comment: {comment}")),
            }
        }
        if console.is_not_run {
            return Ok(console);
        }
        let mut lines = body.lines();
        while let Some(line) = lines.next() {
            let by_root = line.strip_prefix("# ");
            if by_root.is_some() {
                console.needs.push("root".to_owned());
            }
            if let Some(command) = line.strip_prefix("$ ").or(by_root) {
                let mut command = command.to_owned();
                while command.ends_with('\\') {
                    command.push('\n');
                    command.push_str(lines.next().unwrap_or_default());
                }
                console.commands.push(CommandLine {
                    line: command,
                    output: Vec::new(),
                });
            } else {
                let command = console.commands.last_mut();
                let command = command.ok_or_else(|| format!("line {}: output before a command", console.line))?;
                command.output.push(line.to_owned());
            }
        }
        Ok(console)
    }

    /// What this machine lacks for it.
    pub(super) fn missing(&self) -> Option<&str> {
        self.needs.iter().map(String::as_str).find(|need| !is_there(need))
    }
}

fn comment(line: &str) -> Option<String> {
    let inside = line.trim().strip_prefix("<!--")?.strip_suffix("-->")?;
    Some(inside.trim().to_owned())
}

fn is_there(need: &str) -> bool {
    let setting = |path: &str| fs::read_to_string(path).map(|text| text.trim().to_owned());
    match need {
        "cores" => setting("/proc/sys/kernel/core_pattern").is_ok_and(|pattern| pattern == "core"),
        "ptrace" => {
            let scope = setting("/proc/sys/kernel/yama/ptrace_scope");
            rustix::process::geteuid().is_root() || scope.map_or(true, |scope| scope == "0")
        }
        "root" => rustix::process::geteuid().is_root(),
        // Its Python package will do.
        "duckdb" => in_path(need) || readers::python(need).is_ok(),
        program => in_path(program),
    }
}

fn in_path(program: &str) -> bool {
    std::env::var("PATH")
        .unwrap_or_default()
        .split(':')
        .any(|folder| Path::new(folder).join(program).is_file())
}
