//! Libraries of later Debians that take stack traces, for programs that the system's g++ compiles.

use super::debian::Unpacked;
use super::{binutils, run};
use std::fs;
use std::os::unix::fs::symlink;
use std::process::Command;

/// The options with which g++ compiles and links a program that uses C++23's `std::stacktrace`, by
/// gcc 14: Debian's gcc 12 is built without it. `None`, with a `SKIPPED:` line, if it is not to be
/// had.
pub fn std_stacktrace() -> Option<Vec<String>> {
    let options = gcc_14();
    if let Err(why) = &options {
        crate::skip(format_args!("std::stacktrace: {why}"));
    }
    options.ok()
}

fn gcc_14() -> Result<Vec<String>, String> {
    let unpacked = Unpacked::get("g++-14", "trixie", &["g++-14-x86-64-linux-gnu", "libstdc++-14-dev"])?;
    let directory = unpacked.directory().join("cc1plus");
    let compiler = unpacked.file("usr/libexec/gcc/x86_64-linux-gnu/14/cc1plus");
    let libraries = unpacked.file("usr/lib/gcc/x86_64-linux-gnu/14");
    // Files that the newer C library has; everything else is the system's.
    let compatible = directory.join("compatible.o");
    if !compatible.exists() {
        binutils::write_wrapper(&directory.join("cc1plus"), &unpacked.run_by_loader(&compiler))
            .map_err(|error| error.to_string())?;
        for library in ["libstdc++exp.a", "libstdc++.a"] {
            let link = directory.join(library);
            if !link.exists() {
                symlink(libraries.join(library), link).map_err(|error| error.to_string())?;
            }
        }
        let source = directory.join("compatible.c");
        let text = "#include <stdlib.h>\nunsigned long __isoc23_strtoul(const char *text, char **end, int base) \
                    { return strtoul(text, end, base); }\n";
        fs::write(&source, text).map_err(|error| error.to_string())?;
        let partial = directory.join("partial.o");
        run(Command::new("gcc").args(["-O2", "-c", "-o"]).arg(&partial).arg(&source))?;
        fs::rename(partial, &compatible).map_err(|error| error.to_string())?;
    }
    let mut options = vec![
        format!("-B{}/", directory.display()),
        "-std=c++23".to_owned(),
        "-nostdinc".to_owned(),
    ];
    let headers = unpacked.file("usr/include");
    for folder in [
        headers.join("c++/14"),
        headers.join("x86_64-linux-gnu/c++/14"),
        libraries.join("include"),
        "/usr/include/x86_64-linux-gnu".into(),
        "/usr/include".into(),
    ] {
        options.push(format!("-isystem{}", folder.display()));
    }
    options.push(format!("-L{}", directory.display()));
    options.push("-static-libstdc++".to_owned());
    options.push(compatible.display().to_string());
    Ok(options)
}

/// The options with which g++ compiles and links a program that uses cpptrace, which then runs with
/// the libraries and the loader of Debian's sid. `None`, with a `SKIPPED:` line, if it is not to be
/// had.
pub fn cpptrace() -> Option<Vec<String>> {
    let unpacked = Unpacked::get("cpptrace", "sid", &["libcpptrace-dev"]);
    let unpacked = unpacked
        .map_err(|why| crate::skip(format_args!("cpptrace: {why}")))
        .ok()?;
    let libraries = unpacked.libraries().display();
    Some(vec![
        format!("-isystem{}", unpacked.file("usr/include").display()),
        format!("-L{libraries}"),
        format!("-Wl,--dynamic-linker={}", unpacked.loader().display()),
        // Also for the libraries that its libraries need.
        format!("-Wl,--disable-new-dtags,-rpath,{libraries},--allow-shlib-undefined"),
    ])
}
