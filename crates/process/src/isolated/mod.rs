//! Processes without privileges, which read the files of other users.
//!
//! A [worker](Workers) is this program again, started when the first file of a user is read, and
//! one for all files of that user: files that break it can at most change what is made of files of
//! the same user. It gets open files and bytes through a socket, and can do little more than to
//! calculate and to answer (`sandbox`). [`serve`] is its main function.

mod message;
mod sandbox;

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use backtrail_elf::budget;
use backtrail_elf::isolation::{Isolate, Job, Lost};

use message::{Broken, Deadline};

/// More workers than this are not kept: recordings seldom have programs of many users.
const MOST_WORKERS: usize = 4;
/// A worker answers this much later than the time limit says at the latest.
const GRACE: Duration = Duration::from_secs(5);
/// A process that has closed its socket ends in this time.
const ENDING: Duration = Duration::from_secs(1);
/// Files of a user may take this many times the limit of one module before they were given up.
const WASTED_LIMITS: u32 = 2;
/// Users whose files have wasted time are remembered; more than this are one.
const MOST_OWNERS: usize = 4096;

/// Starts workers, and passes files to them.
pub struct Workers {
    program: PathBuf,
    /// The argument with which the program is a worker.
    argument: &'static str,
    state: Mutex<State>,
    /// A thread has its answer.
    answered: Condvar,
}

#[derive(Default)]
struct State {
    /// The one that was used last is the last one.
    running: Vec<Worker>,
    /// The users about whose files threads ask now.
    asked: Vec<u32>,
    /// The time that files of a user have taken without a result.
    wasted: Vec<(u32, Duration)>,
}

struct Worker {
    owner: u32,
    child: Child,
    socket: UnixStream,
}

impl Workers {
    /// Workers are this program, started with `argument` and the factor of
    /// [`backtrail_elf::budget`]; it must then call [`serve`].
    pub fn new(argument: &'static str) -> Workers {
        Workers::of(Path::new("/proc/self/exe"), argument)
    }

    /// The same for another program.
    pub fn of(program: &Path, argument: &'static str) -> Workers {
        Workers {
            program: program.to_owned(),
            argument,
            state: Mutex::default(),
            answered: Condvar::new(),
        }
    }

    fn start(&self, owner: u32) -> io::Result<Worker> {
        let (ours, theirs) = UnixStream::pair()?;
        let child = Command::new(&self.program)
            .arg(self.argument)
            .arg(budget::factor().to_string())
            .env_clear()
            .current_dir("/")
            // It must not get the signals of the terminal: what was recorded until then is read.
            .process_group(0)
            .stdin(OwnedFd::from(theirs))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        Ok(Worker {
            owner,
            child,
            socket: ours,
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until no other thread asks about files of this user: those of one user must not delay
    /// those of others. Returns the worker, if it runs.
    fn begin(&self, owner: u32) -> Result<Option<Worker>, Lost> {
        let is_asked = |state: &mut State| state.asked.contains(&owner);
        let state = self.answered.wait_while(self.lock(), is_asked);
        let mut state = state.unwrap_or_else(PoisonError::into_inner);
        if state.wasted_by(owner) >= budget::longest() * WASTED_LIMITS {
            return Err(Lost::Late);
        }
        state.asked.push(owner);
        Ok(state.take(owner))
    }

    fn answer(
        &self,
        owner: u32,
        mut used: Option<Worker>,
        job: Job,
        files: &[&File],
        request: &[u8],
    ) -> Result<(Worker, Vec<u8>), Lost> {
        // A worker that has done much ends between two requests.
        for _ in 0..2 {
            let is_used = used.is_some();
            let worker = match used.take() {
                Some(worker) => worker,
                None => self.start(owner).map_err(|_| Lost::Unavailable)?,
            };
            let deadline = Deadline::after(budget::longest() + GRACE);
            let broken = match message::ask(&worker.socket, job as u8, files, request, &deadline) {
                Ok(answer) => return Ok((worker, answer)),
                Err(broken) => broken,
            };
            let wait = if broken == Broken::Late { Duration::ZERO } else { ENDING };
            let lost = match (broken, worker.end(wait)) {
                (Broken::Late, _) => Lost::Late,
                (Broken::BeforeAnswer, Some(status)) if status.success() => continue,
                (_, status) => lost(status),
            };
            // What other files had left of its memory was not enough.
            if lost == Lost::Memory && is_used {
                continue;
            }
            return Err(lost);
        }
        Err(Lost::Unavailable)
    }
}

impl Isolate for Workers {
    fn ask(&self, owner: u32, job: Job, files: &[&File], request: &[u8]) -> Result<Vec<u8>, Lost> {
        let used = self.begin(owner)?;
        let begun = Instant::now();
        let answered = self.answer(owner, used, job, files, request);
        let mut state = self.lock();
        state.asked.retain(|asked| *asked != owner);
        self.answered.notify_all();
        match answered {
            Ok((worker, answer)) => {
                state.keep(worker);
                Ok(answer)
            }
            Err(lost) => {
                state.waste(owner, begun.elapsed());
                Err(lost)
            }
        }
    }
}

fn lost(status: Option<ExitStatus>) -> Lost {
    match status.map(|status| (status.code(), status.signal())) {
        Some((Some(sandbox::OUT_OF_MEMORY), _)) => Lost::Memory,
        Some((Some(sandbox::NO_SANDBOX), _)) => Lost::Unavailable,
        Some((_, Some(libc::SIGXCPU))) => Lost::Late,
        _ => Lost::Ended,
    }
}

impl State {
    fn take(&mut self, owner: u32) -> Option<Worker> {
        let at = self.running.iter().position(|worker| worker.owner == owner)?;
        Some(self.running.remove(at))
    }

    fn keep(&mut self, worker: Worker) {
        self.running.push(worker);
        if self.running.len() > MOST_WORKERS {
            self.running.remove(0).end(Duration::ZERO);
        }
    }

    fn wasted_by(&self, owner: u32) -> Duration {
        let of_owner = self.wasted.iter().find(|(of, _)| *of == owner);
        of_owner.map_or(Duration::ZERO, |(_, wasted)| *wasted)
    }

    fn waste(&mut self, owner: u32, time: Duration) {
        let at = self.wasted.iter().position(|(of, _)| *of == owner);
        match at {
            Some(at) => self.wasted[at].1 += time,
            None if self.wasted.len() < MOST_OWNERS => self.wasted.push((owner, time)),
            None => {}
        }
    }
}

impl Worker {
    /// Ends it, and returns how it ended by itself: it closes its socket a little earlier.
    fn end(mut self, wait: Duration) -> Option<ExitStatus> {
        let begun = Instant::now();
        while begun.elapsed() < wait {
            if let Ok(Some(status)) = self.child.try_wait() {
                return Some(status);
            }
            thread::sleep(Duration::from_millis(1));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
        None
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        for worker in state.running.drain(..) {
            worker.end(Duration::ZERO);
        }
    }
}

/// After this much work a worker ends, which frees everything, and another one is started.
const WORKED_ENOUGH: Duration = Duration::from_secs(600);
/// Likewise after this many requests: each may leave three files open.
const MOST_REQUESTS: u64 = sandbox::MOST_FILES / 4;

/// The main function of a worker: gives up all privileges, then answers requests from its standard
/// input, until that is closed. `arguments` are those after the one that made it a worker. Returns
/// the process's exit status.
pub fn serve(arguments: &[String], mut answer: impl FnMut(Job, Vec<File>, &[u8]) -> Option<Vec<u8>>) -> u8 {
    let factor = arguments.first().and_then(|factor| factor.parse().ok());
    budget::raise(factor.unwrap_or(1));
    let Ok(socket) = sandbox::enter() else {
        return sandbox::NO_SANDBOX as u8;
    };
    let mut worked = Duration::ZERO;
    for _ in 0..MOST_REQUESTS {
        if worked >= WORKED_ENOUGH {
            break;
        }
        let Ok(Some((job, files, request))) = message::next(&socket) else {
            break;
        };
        let begun = Instant::now();
        let job = Job::of(job);
        let Some(answer) = job.and_then(|job| answer(job, files, &request)) else {
            break;
        };
        if message::answer(&socket, &answer).is_err() {
            break;
        }
        worked += begun.elapsed();
    }
    0
}
