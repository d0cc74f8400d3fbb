//! The modules of the process, which readers need to name the functions of its stacks. They are in
//! the table of classes: so they are in the file of a killed process, in a child's file after a
//! fork, and beside rings that are overwritten.

use std::fmt::Write;

use backtrail_local::InitOptions;
use backtrail_local::loaded::{self, LoadedModule};

use crate::classes;
use crate::field::Text;
use crate::session::Session;

/// The most modules in a table. A program may load and unload libraries for ever.
const MOST: usize = 1000;

/// How to prepare for stacks.
pub(crate) fn following() -> InitOptions {
    InitOptions::default().following_then(|| {
        if let Some(session) = Session::get() {
            enter(session);
        }
    })
}

/// There is a class whose events have stacks now. For handlers, too.
pub(crate) fn want() {
    loaded::look_for_modules();
}

/// Goes on in a forked child, whose table has its parent's modules.
pub(crate) fn after_fork(session: &Session) {
    // Without the thread, libraries that are loaded from now on have no names.
    let _ = backtrail_local::follow_in_child();
    if classes::any_has_stacks(&session.map) {
        want();
    }
}

/// Enters the modules in the table if any class has stacks. Not for handlers.
pub(crate) fn enter(session: &Session) {
    if !classes::any_has_stacks(&session.map) {
        return;
    }
    let before = classes::count_modules(&session.map);
    // Those that are there already are found there.
    for module in loaded::modules().iter().take(MOST.saturating_sub(before)) {
        let text = describe(module);
        classes::enter_module(&session.map, &|out: &mut Text<'_>| out.str(&text));
    }
}

/// The first address, the bytes, whether addresses in the file are relative to the first, the build
/// id, and the path, with spaces between. Readers find this in the trace's environment.
fn describe(module: &LoadedModule) -> String {
    let kind = if module.bias == 0 { "fixed" } else { "relative" };
    let mut text = format!(
        "{:#x} {:#x} {kind} ",
        module.start,
        module.end.saturating_sub(module.start)
    );
    module.build_id.iter().for_each(|byte| _ = write!(text, "{byte:02x}"));
    if module.build_id.is_empty() {
        text.push('-');
    }
    let path = match module.path {
        b"linux-vdso.so.1" => b"[vdso]",
        path => path,
    };
    text + " " + &String::from_utf8_lossy(path)
}
