//! `cargo xtask arguments` and `arguments-truth`: calling conventions at length, and what is shown of arguments beside gdb.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

use backtrail_elf::{Image, MappedFile};
use backtrail_testkit::command::{self, Signal};
use backtrail_testkit::gdb_arguments::{self, Tally};
use backtrail_testkit::place;

/// Places that a program is stopped at for the document.
pub(crate) const PLACES: u32 = 100;

const LIMIT: Duration = Duration::from_secs(3600);

/// A program around the library: runs a script.
const MAIN: &str = r#"
#include "lua.h"
#include "lauxlib.h"
#include "lualib.h"
static int run(lua_State *L) { luaL_openlibs(L); return luaL_dofile(L, lua_tostring(L, 1)); }
int main(int argc, char **argv)
{
    lua_State *L = luaL_newstate();
    lua_pushcfunction(L, run);
    lua_pushstring(L, argv[argc - 1]);
    return lua_pcall(L, 1, 0, 0);
}
"#;

/// A script that is in the interpreter, its library and its collector by turns.
const SCRIPT: &str = r#"
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

/// Runs the test of calling conventions with so many signatures for each compiler.
pub(crate) fn conventions(signatures: u32) -> Result<(), String> {
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let status = Command::new(cargo)
        .args([
            "test",
            "-p",
            "backtrail-args",
            "--test",
            "conventions",
            "--",
            "--nocapture",
        ])
        .env("BACKTRAIL_SIGNATURES", signatures.to_string())
        .status()
        .map_err(|error| format!("cargo: {error}"))?;
    status
        .success()
        .then_some(())
        .ok_or_else(|| "arguments are elsewhere".to_owned())
}

/// Stops lua at so many places.
pub(crate) fn truth(places: u32, sources: &Path) -> Result<(), String> {
    let folder = backtrail_testkit::scratch();
    let path = |name: &str| folder.path().join(name);
    let io = |error: std::io::Error| error.to_string();
    fs::write(path("main.c"), MAIN).map_err(io)?;
    fs::write(path("script.lua"), SCRIPT).map_err(io)?;
    let is_source = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default();
        path.extension().is_some_and(|extension| extension == "c")
            && !["lua.c", "luac.c", "onelua.c", "ltests.c"]
                .iter()
                .any(|other| name == *other)
    };
    let listed = fs::read_dir(sources).map_err(|error| format!("{}: {error}", sources.display()))?;
    let all: Vec<PathBuf> = listed.flatten().map(|entry| entry.path()).filter(is_source).collect();
    let mut gcc = Command::new("gcc");
    gcc.args(["-O2", "-g", "-std=gnu99", "-DLUA_USE_LINUX", "-Wl,-E", "-I"])
        .arg(sources)
        .arg("-o")
        .arg(path("built"));
    run(gcc.arg(path("main.c")).args(&all).args(["-lm", "-ldl"]))?;
    let backtrail = place::target().join("debug/backtrail");
    run(Command::new(&backtrail)
        .args(["sframe", "add", "--args", "-o"])
        .arg(path("lua"))
        .arg(path("built")))?;
    run(Command::new("strip")
        .args(["-g", "-o"])
        .arg(path("stripped"))
        .arg(path("lua")))?;
    let (mut outer, mut inner) = (Tally::default(), Tally::default());
    let running =
        command::start(Command::new(path("lua")).arg(path("script.lua")), LIMIT).map_err(|missing| missing.0)?;
    let mut moment = 0x9e37_79b9u64;
    for _ in 0..places {
        moment = moment
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        sleep(Duration::from_micros(20_000 + (moment >> 33) % 50_000));
        running.signal(Signal::STOP);
        let pid = running.pid();
        let mut stack = Command::new(&backtrail);
        stack
            .args(["stack", "--args", "--json", "--exe"])
            .arg(path("stripped"))
            .arg(pid.to_string());
        let document = serde_json::from_str(&run(&mut stack)?).map_err(|error| error.to_string())?;
        let gdb = gdb_arguments::arguments(&path("lua"), pid).map_err(|missing| missing.0)?;
        outer.count(&document, &gdb, false);
        inner.count(&document, &gdb, true);
        running.signal(Signal::CONT);
    }
    running.signal(Signal::KILL);
    let sizes = Sizes::of(&path("lua"))?;
    let page = page(places, &sizes, &outer, &inner);
    println!("{page}");
    for wrong in outer.wrong.iter().chain(&inner.wrong).take(20) {
        println!("{wrong}");
    }
    if places >= PLACES {
        fs::write(place::workspace().join("docs/args.md"), page).map_err(io)?;
    }
    let wrong = outer.wrong.len() + inner.wrong.len();
    (wrong == 0)
        .then_some(())
        .ok_or_else(|| format!("{wrong} values are not gdb's"))
}

fn run(command: &mut Command) -> Result<String, String> {
    let finished = command::run(command, LIMIT).map_err(|missing| missing.0)?;
    match finished.status.success() {
        true => Ok(finished.stdout),
        false => Err(format!("{command:?}: {}", finished.describe())),
    }
}

/// Bytes of sections.
struct Sizes {
    text: u64,
    debug: u64,
    types: u64,
    table: u64,
}

impl Sizes {
    fn of(path: &Path) -> Result<Sizes, String> {
        let file = MappedFile::open(path).map_err(|error| error.to_string())?;
        let image = Image::parse(file.bytes()).map_err(|error| error.to_string())?;
        let sum = |wanted: &dyn Fn(&[u8]) -> bool| {
            let sections = image.sections().iter().filter(|section| wanted(section.name));
            sections.map(|section| section.size).sum()
        };
        Ok(Sizes {
            text: sum(&|name| name == b".text"),
            debug: sum(&|name| name.starts_with(b".debug_")),
            types: sum(&|name| name == b".ctf"),
            table: sum(&|name| name == b".backtrail.args"),
        })
    }
}

fn share(part: usize, whole: usize) -> String {
    format!("{part} ({:.1} %)", 100.0 * part as f64 / whole.max(1) as f64)
}

fn page(places: u32, sizes: &Sizes, outer: &Tally, inner: &Tally) -> String {
    let row = |what: &str, tally: &Tally| {
        format!(
            "| {what} | {} | {} | {} | {} | {} | {} | {} |\n",
            tally.frames,
            tally.arguments,
            share(tally.gdb[0], tally.arguments),
            share(tally.gdb[1], tally.arguments),
            share(tally.ours[0], tally.arguments),
            share(tally.ours[1], tally.arguments),
            tally.wrong.len()
        )
    };
    let Sizes {
        text,
        debug,
        types,
        table,
    } = *sizes;
    format!(
        "# What functions were called with\n\n\
         Written by `cargo xtask arguments-truth SOURCES`, with the sources of Lua 5.4: built by `gcc -O2 -g`, given a table by `backtrail sframe add --args`, then \
         stripped of debug information. The program was stopped at {places} places by chance. `backtrail stack --args` has only what is left in the stripped \
         file; gdb has the debug information. Inlined calls, which the table does not tell, are not counted.\n\n\
         *As it is* is the value of the argument at that moment; *as passed* is what the function was called with, where the former is lost \
         (`name@entry`). *Wrong* are values that both show as the same of the two, and that differ.\n\n\
         | frames | how many | arguments | gdb: as it is | gdb: as passed | shown: as it is | shown: as passed | wrong |\n\
         |---|---|---|---|---|---|---|---|\n{}{}\n\
         ## Size\n\n\
         | program | .text | debug information | .ctf | table | of .text | of debug information |\n|---|---|---|---|---|---|---|\n\
         | lua | {text} | {debug} | {types} | {table} | {:.1} % | 1/{} |\n",
        row("outer", outer),
        row("innermost", inner),
        100.0 * table as f64 / text.max(1) as f64,
        debug / table.max(1),
    )
}
