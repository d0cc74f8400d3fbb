enum Kind {
    Text(String),
    Picture { width: u32, height: u32 },
}

#[inline(never)]
fn send(kind: &Kind, to: &[&str], password: &str, tries: u32) -> usize {
    // There are only two.
    let address = to[tries as usize].len();
    let size = match kind {
        Kind::Text(text) => text.len(),
        Kind::Picture { width, height } => (width * height) as usize,
    };
    size + password.len() + address + to.len()
}

#[inline(never)]
fn queue(kinds: Vec<Kind>, to: &[&str]) -> usize {
    let mut size = 0;
    for kind in &kinds {
        size += send(kind, to, "hunter2", 3);
    }
    size
}

fn main() {
    let width = std::env::args().count() as u32 + 639;
    let kinds = vec![Kind::Picture { width, height: 480 }, Kind::Text(format!("{width}"))];
    println!("{}", queue(kinds, &["eve@example.org", "bob@example.org"]));
}
