//! Records one event of each kind of field into the directory of the first argument.

use backtrail_tracer::{Address, Context, Level, Options, event, labels, record};

labels! {
    /// What a connection does.
    #[derive(Clone, Copy)]
    enum State: i8 {
        Broken = -1,
        Idle = 0,
        Busy = 1,
    }
}

record! {
    /// A place with names.
    pub struct Place {
        x: f64,
        names: Vec<String>,
        inner: Option<u16>,
    }
}

fn main() -> std::io::Result<()> {
    let directory = std::env::args_os().nth(1).unwrap_or_else(|| "trace".into());
    let options = Options::to_directory(directory)
        .own_context("request", || 77)
        .context(Context::Cpu)
        .context(Context::Name);
    let tracer = backtrail_tracer::start(options.context(Context::Pid).context(Context::Tid))?;
    event!(kinds::empty);
    event!(Level::Debug, kinds::numbers, a: u8 = 1, b: i64 = -2, c: f32 = 1.5, d: bool = true, e: Address = Address(255), f: usize = 9);
    let peer = "10.0.0.1";
    event!(kinds::texts, peer: &str, r#type: &str = "", cut: &str = "a\0b");
    event!(kinds::arrays, fixed: [u16; 3] = [1, 2, 3], grid: [[u8; 2]; 2] = [[1, 2], [3, 4]], bytes: &[u8] = &[9, 8], nested: Vec<Vec<u8>> = vec![vec![1], vec![], vec![2, 3]], none: &[u32] = &[]);
    event!(kinds::labels, state: State = State::Broken, all: [State; 2] = [State::Idle, State::Busy]);
    event!(kinds::optional, some: Option<u32> = Some(5), none: Option<&str> = None, list: Vec<Option<u8>> = vec![None, Some(3)]);
    let place = Place {
        x: 0.25,
        names: vec!["a".into(), "bc".into()],
        inner: Some(4),
    };
    event!(kinds::structs, place: &Place = &place, all: &[Place] = core::slice::from_ref(&place));
    event!(kinds::stack, value: u32 = 1, stack: true);
    drop(tracer);
    Ok(())
}
