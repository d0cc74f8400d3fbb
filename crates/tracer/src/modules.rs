//! The modules of the process, which readers need to name the functions of its stacks. They are in
//! the table of classes: so they are in the file of a killed process, in a child's file after a
//! fork, and beside rings that are overwritten.

use backtrail_local::InitOptions;
use backtrail_local::loaded::{self, LoadedModule};

use crate::classes;
use crate::field::{Text, digit};
use crate::session::Session;

/// The most modules in a table. A program may load and unload libraries for ever.
const MOST: usize = 1000;

/// How to prepare for stacks: libraries that are loaded later are entered once a stack passes
/// through one.
pub(crate) fn following() -> InitOptions {
    InitOptions::default().following_then(|| {
        if let Some(session) = Session::get().filter(|session| classes::any_has_stacks(&session.map)) {
            enter(session);
        }
    })
}

/// Goes on in a forked child, whose table has its parent's modules.
pub(crate) fn after_fork() {
    // Without the thread, libraries that are loaded from now on have no names.
    let _ = backtrail_local::follow_in_child();
}

/// Enters all modules if any class has stacks, also those that the thread has not seen yet. Not
/// for handlers.
pub(crate) fn enter_all(session: &Session) {
    if classes::any_has_stacks(&session.map) {
        // What is known already needs no memory.
        let _ = backtrail_local::init();
        enter(session);
    }
}

/// Enters the modules in the table. Takes no lock and does not allocate.
pub(crate) fn enter(session: &Session) {
    let before = classes::count_modules(&session.map);
    // Those that are there already are found there.
    for module in loaded::modules().take(MOST.saturating_sub(before)) {
        classes::enter_module(&session.map, &|text: &mut Text<'_>| describe(&module, text));
    }
}

/// The first address, the bytes, whether addresses in the file are relative to the first, the build
/// id, and the path, with spaces between. Readers find this in the trace's environment.
fn describe(module: &LoadedModule, text: &mut Text<'_>) {
    text.hexadecimal(module.start);
    text.str(" ");
    text.hexadecimal(module.end.saturating_sub(module.start));
    text.str(if module.bias == 0 { " fixed " } else { " relative " });
    for byte in module.build_id {
        text.all(&[digit(byte >> 4), digit(byte & 15)]);
    }
    text.str(if module.build_id.is_empty() { "- " } else { " " });
    text.all(match module.path {
        b"linux-vdso.so.1" => b"[vdso]",
        path => path,
    });
}
