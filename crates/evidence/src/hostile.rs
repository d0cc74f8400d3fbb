//! A recorder as root beside programs of another user that replace, shorten and remove their files
//! while they are recorded.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;
use std::process::{Child, Stdio};
use std::thread::sleep;
use std::time::Duration;

use backtrail_testkit::recorder::{Backtrail, Summary, bytes_in};
use backtrail_testkit::{place, program, scratch};

/// The user of the hostile programs, who has no files.
const STRANGER: u32 = 65_533;
/// The recorder may need this much more memory in the second half than in the first, in KiB: as
/// much as it keeps of files that wait for their tables, and some for chance.
const GROWTH: u64 = (32 + 16) << 10;
/// The share of complete stacks may differ by chance.
const TOLERANCE: f64 = 0.01;

/// How many programs, and for how long.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Record for this many seconds.
    #[arg(long, default_value_t = 600)]
    seconds: u64,
    /// Run this many hostile programs.
    #[arg(long, default_value_t = 40)]
    programs: u32,
}

/// Runs `$2` programs of user `$3` for `$1` seconds, each in its folder in `$4`, and an honest one.
const DRIVER: &str = r#"
end=$(( $(date +%s) + $1 ))
number=0
for mode in $(yes fifo zeros loop swap shrink | tr ' ' '\n' | head -n "$2"); do
  folder=$4/$number; number=$((number + 1))
  mkdir "$folder" && chown "$3" "$folder"
  ( while [ $(date +%s) -lt $end ]; do
      find "$folder" -mindepth 1 -delete
      nice -n 19 setpriv --reuid "$3" --clear-groups "$4/hostile" 3 $mode "$4/library.so" "$folder"
    done ) 2>/dev/null &
done
while [ $(date +%s) -lt $end ]; do "$4/spin" 5; done
wait
"#;

pub(crate) fn run(options: &Options) -> Result<bool, String> {
    let backtrail = Backtrail::new(place::release("backtrail", "backtrail")?);
    let folder = scratch();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).map_err(|error| error.to_string())?;
    for (program, name) in [
        (&program::HOSTILE, "hostile"),
        (&program::LARGE_LIBRARY, "library.so"),
        (&program::SPIN, "spin"),
    ] {
        let built = program.build().map_err(|missing| missing.to_string())?;
        let place = folder.path().join(name);
        fs::copy(built, &place).map_err(|error| error.to_string())?;
        chown(&place, Some(STRANGER), None).map_err(|_| "only root can run programs of other users")?;
    }
    let (alone, _) = record(&backtrail, folder.path(), 20, 0)?;
    let (beside, memory) = record(&backtrail, folder.path(), options.seconds, options.programs)?;
    let most = |part: &[u64]| part.iter().copied().max().unwrap_or(0);
    let (first, second) = memory.split_at(memory.len() / 2);
    println!(
        "honest stacks complete: {:.4} of {} alone, {:.4} of {} beside {} hostile programs",
        alone.complete, alone.samples, beside.complete, beside.samples, options.programs
    );
    println!("memory of the recorder: {} KiB, then {} KiB", most(first), most(second));
    let is_bounded = most(second) <= most(first) + GROWTH;
    println!(
        "memory of adding the names afterwards: {} KiB",
        pack(&backtrail, &folder.path().join(format!("trace-{}", options.programs)))?
    );
    Ok(is_bounded && beside.samples > 0 && beside.complete >= alone.complete - TOLERANCE)
}

/// Records, and returns what became of the honest program, and the memory of the recorder every
/// second, in KiB.
fn record(backtrail: &Backtrail, folder: &Path, seconds: u64, programs: u32) -> Result<(Summary, Vec<u64>), String> {
    let work = folder.join(format!("beside-{programs}"));
    fs::create_dir(&work).map_err(|error| error.to_string())?;
    for name in ["hostile", "library.so", "spin"] {
        fs::hard_link(folder.join(name), work.join(name)).map_err(|error| error.to_string())?;
    }
    let trace = folder.join(format!("trace-{programs}"));
    let [seconds, programs] = [seconds.to_string(), programs.to_string()];
    let (user, place) = (STRANGER.to_string(), work.to_string_lossy().into_owned());
    let driver = ["sh", "-c", DRIVER, "driver", &seconds, &programs, &user, &place];
    // Names are added afterwards, by a command of its own whose memory is another question.
    let mut command = backtrail.record(&trace, &["-F", "99", "--no-symbols"], &driver);
    let mut recorder = command
        .stdout(Stdio::null())
        .spawn()
        .map_err(|error| error.to_string())?;
    let mut memory = Vec::new();
    let status = loop {
        if let Some(status) = recorder.try_wait().map_err(|error| error.to_string())? {
            break status;
        }
        memory.extend(resident(&recorder));
        sleep(Duration::from_secs(1));
    };
    println!(
        "{programs} hostile programs: {status}, {} bytes of trace",
        bytes_in(&trace)
    );
    let mut report = backtrail.command(["report", "--json", "-", "--process", "spin"]);
    let report = report.arg(&trace).output().map_err(|error| error.to_string())?;
    let summary = Summary::from_json(&String::from_utf8_lossy(&report.stdout))?;
    match status.success() {
        true => Ok((summary, memory)),
        false => Err(format!("the recorder ended with {status}")),
    }
}

/// Adds names to a recording, and returns the most memory that this took, in KiB.
fn pack(backtrail: &Backtrail, trace: &Path) -> Result<u64, String> {
    let mut pack = backtrail.command(["pack", "-q"]);
    let mut pack = pack.arg(trace).spawn().map_err(|error| error.to_string())?;
    let mut most = 0;
    let status = loop {
        if let Some(status) = pack.try_wait().map_err(|error| error.to_string())? {
            break status;
        }
        most = most.max(resident(&pack).unwrap_or(0));
        sleep(Duration::from_millis(10));
    };
    match status.success() {
        true => Ok(most),
        false => Err(format!("adding names ended with {status}")),
    }
}

fn resident(process: &Child) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{}/status", process.id())).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.split_whitespace().next()?.parse().ok()
}
