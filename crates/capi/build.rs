//! Gives the shared library its name, by which programs that were linked with it find it.

fn main() {
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libbacktrail.so.0");
    println!("cargo::rerun-if-changed=build.rs");
}
