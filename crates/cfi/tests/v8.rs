//! Compares names of functions that V8 has compiled with its own perf map of the same process.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use backtrail_arch::{Arch, x86_64};
use backtrail_cfi::proof::{CodeProofs, ProcessCode, Region};
use backtrail_cfi::registers::FunctionRule;
use backtrail_elf::{FileBytes, Image};
use backtrail_testkit::{available, command, scratch, skip};

/// Functions of every kind, one of them in a module whose text has characters of two bytes.
const SOURCE: &str = r#"const { twice } = require("./module.js");
function leaf(a, b) { let sum = 0; for (let i = 0; i < 50; i++) sum = (sum + a * i) ^ b; return sum; }
function middle(x) {
  let sum = 0;
  for (let i = 0; i < 100; i++) sum = (sum + leaf(x, i)) | 0;
  return sum;
}
class Shop {
  constructor() { this.count = 0; }
  total(n) { let sum = 0; for (let i = 0; i < n; i++) sum = (sum ^ middle(i)) | 0; return sum; }
  get size() { return this.count++; }
}
const arrow = (shop) => shop.total(20) + twice(shop.size);
const shop = new Shop();
let result = 0;
for (let round = 0; ; round++) {
  result ^= arrow(shop);
  if (round == 3000) console.log("ready");
}
"#;
const MODULE: &str = "// ümläut, 漢字, 😀\r\nconst many = 1;\r\n\
                      exports.twice = function (x) { let y = x; for (let i = 0; i < 1000; i++) y = (y + i) | 0; return 2 * y; };\n";
/// Those that are called so often that they are optimized.
const HOT: [&str; 3] = ["leaf", "middle", "total"];

const LIMIT: Duration = Duration::from_secs(120);

#[test]
fn functions_have_the_names_of_v8_s_perf_map() {
    let folder = scratch();
    let script = folder.path().join("script.js");
    fs::write(&script, SOURCE).expect("the folder can be written");
    fs::write(folder.path().join("module.js"), MODULE).expect("the folder can be written");
    let mut node = Command::new("node");
    // On a busy machine, functions would be optimized late.
    node.args(["--perf-basic-prof", "--no-use-osr", "--no-concurrent-recompilation"]);
    // V8 writes a log beside it.
    node.arg(&script);
    node.current_dir(folder.path());
    let Some(node) = available(command::start(&mut node, LIMIT)) else {
        return;
    };
    if !node.wait_for_output("ready") {
        panic!("{}", node.finish().describe());
    }
    assert!(node.stop(), "it can be stopped");
    let pid = node.pid();
    let map = format!("/tmp/perf-{pid}.map");
    let listed = listed(Path::new(&map));
    let _ = fs::remove_file(map);
    let process = Process::of(pid);
    let proofs = CodeProofs::default();
    // Scripts become known by their optimized functions.
    for start in listed.keys() {
        let _ = proofs.function(&process, *start);
    }
    if !process.publishes() {
        return skip("this node does not export what V8 publishes for debuggers");
    }
    let ours = folder.path().to_str().expect("it is UTF-8");
    let mut named = Vec::new();
    for (start, entry) in &listed {
        let Entry {
            size,
            name,
            is_optimized,
        } = entry;
        // Optimized code that is not used any more may be half collected: node's own is left out.
        if *is_optimized && !name.contains(ours) {
            continue;
        }
        // Of scripts without optimized functions, the baseline compiler's code has no names.
        let Some(found) = proofs.function(&process, start + size / 2) else {
            continue;
        };
        let function = found.function;
        assert_eq!(function.addresses, *start..start + size, "{name}: {function:?}");
        let (theirs, place) = name.split_once(' ').unwrap_or(("", name));
        let rest = function.name.strip_prefix("JS:").expect("it is V8's");
        let (own, own_place) = rest.split_once(' ').unwrap_or((rest, ""));
        // A function without a name has that of what it was assigned to.
        assert!(theirs.is_empty() || own == theirs, "{name}: {rest}");
        // Old versions write lines without columns.
        let without_column = own_place.rsplit_once(':').map(|(place, _)| place);
        assert!(own_place == place || without_column == Some(place), "{name}: {rest}");
        if own_place.starts_with(ours) {
            named.push((own.to_owned(), *is_optimized));
        }
    }
    for hot in HOT {
        assert!(
            named.contains(&(hot.to_owned(), true)),
            "{hot}: {named:?} of {listed:?}"
        );
    }
    assert!(named.iter().any(|(_, is_optimized)| !is_optimized), "{named:?}");
    node.signal(command::Signal::KILL);
}

/// A function of a perf map.
#[derive(Debug)]
struct Entry {
    size: u64,
    /// Without the sign for the compiler.
    name: String,
    is_optimized: bool,
}

/// The compiled functions of a perf map, by their starts. What was made later replaces what was
/// there before.
fn listed(map: &Path) -> BTreeMap<u64, Entry> {
    let text = fs::read_to_string(map).expect("V8 has written it");
    let mut listed: BTreeMap<u64, Entry> = BTreeMap::new();
    for line in text.lines() {
        let mut parts = line.splitn(3, ' ');
        let mut number = || u64::from_str_radix(parts.next()?, 16).ok();
        let (Some(start), Some(size)) = (number(), number()) else {
            continue;
        };
        let end = start + size;
        listed.retain(|other, entry| other + entry.size <= start || end <= *other);
        let Some((kind, name)) = parts.next().and_then(|name| name.split_once(':')) else {
            continue;
        };
        if !["JS", "Function", "LazyCompile", "Script"].contains(&kind) {
            continue;
        }
        // `~` is bytecode.
        let optimized = name.strip_prefix(['*', '+']);
        let Some(name) = optimized.or_else(|| name.strip_prefix('^')) else {
            continue;
        };
        let entry = Entry {
            size,
            name: name.strip_prefix('\'').unwrap_or(name).to_owned(),
            is_optimized: optimized.is_some(),
        };
        listed.insert(start, entry);
    }
    listed
}

/// A process that does not change.
struct Process {
    pid: u32,
    regions: Vec<Region>,
    memory: File,
}

impl Process {
    fn of(pid: u32) -> Process {
        let maps = fs::read_to_string(format!("/proc/{pid}/maps")).expect("it runs");
        let region = |line: &str| {
            let mut parts = line.split_whitespace();
            let (begin, end) = parts.next()?.split_once('-')?;
            let rights = parts.next()?;
            let number = |text| u64::from_str_radix(text, 16).ok();
            Some(Region {
                range: number(begin)?..number(end)?,
                writable: rights.contains('w'),
                executable: rights.contains('x'),
                path: parts.nth(3).unwrap_or_default().to_owned(),
            })
        };
        Process {
            pid,
            regions: maps.lines().filter_map(region).collect(),
            memory: File::open(format!("/proc/{pid}/mem")).expect("it may be read"),
        }
    }

    /// Whether a file with this name exports what V8 publishes.
    fn publishes(&self) -> bool {
        let files = (0..self.regions.len()).filter(|region| self.regions[*region].path.contains("node"));
        files
            .into_iter()
            .any(|region| !self.objects(region, "v8dbg_").is_empty())
    }
}

impl ProcessCode for Process {
    type Mapping = usize;
    type Place = u64;

    fn arch(&self) -> &'static Arch {
        &x86_64::ARCH
    }

    fn process(&self) -> u32 {
        self.pid
    }

    fn find(&self, address: u64) -> Option<usize> {
        self.regions.iter().position(|region| region.range.contains(&address))
    }

    fn range(&self, mapping: usize) -> Range<u64> {
        self.regions[mapping].range.clone()
    }

    fn place(&self, _mapping: usize, address: u64) -> u64 {
        address
    }

    fn is_file(&self, mapping: usize) -> bool {
        self.regions[mapping].path.starts_with('/')
    }

    fn is_same_file(&self, one: usize, other: usize) -> bool {
        self.regions[one].path == self.regions[other].path
    }

    fn has_table(&self, _mapping: usize) -> bool {
        false
    }

    fn function_at(&self, _mapping: usize, _address: u64) -> Option<Range<u64>> {
        None
    }

    fn described_function(&self, _mapping: usize, _address: u64) -> Option<Range<u64>> {
        None
    }

    fn has_call_frames(&self, _mapping: usize) -> bool {
        false
    }

    fn starts(&self, _mapping: usize, _range: Range<u64>) -> Vec<u64> {
        Vec::new()
    }

    fn objects(&self, mapping: usize, prefix: &str) -> Vec<(String, u64)> {
        let path = &self.regions[mapping].path;
        let Ok(file) = FileBytes::open(Path::new(path)) else {
            return Vec::new();
        };
        let image = Image::of(&file).expect("it runs");
        let first = self.regions.iter().find(|region| region.path == *path);
        let base = match image.is_position_independent() {
            true => first.map_or(0, |region| region.range.start),
            false => 0,
        };
        let objects = image.exported_objects(prefix).into_iter();
        objects.map(|(name, svma)| (name, base + svma)).collect()
    }

    fn is_described(&self, _mapping: usize, _address: u64) -> bool {
        false
    }

    fn rule(&self, _mapping: usize, _address: u64) -> Option<FunctionRule> {
        None
    }

    fn read(&self, start: u64, bytes: &mut [u8]) -> usize {
        self.memory.read_at(bytes, start).unwrap_or(0)
    }

    fn regions(&self) -> Vec<Region> {
        self.regions.clone()
    }
}
