//! LLVM's C++ library, of which Debian's packages cannot be installed beside GNU libunwind's.

use super::debian::contents;

/// The options with which clang++ compiles and links with it; `None`, with a `SKIPPED:` line, if it
/// cannot be had.
pub fn libcxx() -> Option<Vec<String>> {
    let packages = [
        "libc++-14-dev",
        "libc++1-14",
        "libc++abi-14-dev",
        "libc++abi1-14",
        "libunwind-14",
    ];
    let found = contents("libcxx-14", "bookworm", "", &packages);
    let root = found.map_err(|why| crate::skip(format_args!("libc++: {why}"))).ok()?;
    let llvm = root.join("usr/lib/llvm-14");
    let (headers, libraries) = (llvm.join("include/c++/v1"), llvm.join("lib"));
    Some(vec![
        "-stdlib=libc++".to_owned(),
        "-nostdinc++".to_owned(),
        format!("-isystem{}", headers.display()),
        format!("-L{}", libraries.display()),
        // Also for the libraries that its libraries need.
        format!("-Wl,--disable-new-dtags,-rpath,{}", libraries.display()),
    ])
}
