//! The library of `panics.rs`.

pub struct Told(pub &'static str);

impl Drop for Told {
    fn drop(&mut self) {
        println!("drop {}", self.0);
    }
}

#[inline(never)]
pub fn descend(depth: u32) -> u32 {
    let _told = Told("level");
    match depth {
        0 => panic!("bottom"),
        _ => descend(depth - 1) + 1,
    }
}

pub fn joined(count: usize) -> String {
    (0..count).map(|index| format!("{index:>3}")).collect::<Vec<_>>().join(",")
}
