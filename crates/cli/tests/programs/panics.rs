//! Uses a library and the standard library, and unwinds through both.

fn main() {
    std::panic::set_hook(Box::new(|_| println!("hook")));
    let _last = parts::Told("main");
    let unwound = std::panic::catch_unwind(|| parts::descend(5)).is_err();
    println!("{} {unwound}", parts::joined(3));
}
