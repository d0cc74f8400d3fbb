//! Names of Fortran's symbols as gdb shows them: gfortran joins a module's name and a procedure's,
//! and appends an underscore to other procedures' names. Names of C may look like these, so the
//! caller has to know that a name is Fortran's.

/// Whether this source file is in Fortran.
pub(crate) fn is_source(path: &str) -> bool {
    let ending = path.rsplit('.').next().unwrap_or_default().to_ascii_lowercase();
    path.contains('.') && matches!(&ending[..], "f" | "for" | "f77" | "f90" | "f95" | "f03" | "f08" | "f18")
}

/// The name in Fortran; `None` if it is the one in the source.
pub(crate) fn decode(name: &str) -> Option<String> {
    let (name, suffix) = name.split_at(name.find('.').unwrap_or(name.len()));
    let decoded = match name.strip_prefix("__").and_then(|name| name.split_once("_MOD_")) {
        Some((module, name)) if !module.is_empty() && !name.is_empty() => format!("{module}::{name}"),
        Some(_) => return None,
        None => {
            let own = name.strip_suffix('_').filter(|own| !own.ends_with('_'))?;
            (!own.is_empty()).then(|| own.to_owned())?
        }
    };
    // gfortran numbers the procedures inside of others.
    let is_number = |suffix: &str| !suffix.is_empty() && suffix.bytes().all(|byte| byte.is_ascii_digit());
    Some(match suffix.strip_prefix('.') {
        None => decoded,
        Some(number) if is_number(number) => decoded,
        Some(_) => format!("{decoded} [clone {suffix}]"),
    })
}

#[cfg(test)]
mod tests {
    use super::{decode, is_source};

    /// The names that gdb 13 shows.
    #[test]
    fn names_of_fortran() {
        for (name, expected) in [
            ("__m_MOD_waits", Some("m::waits")),
            ("__a_b_MOD_c_d", Some("a_b::c_d")),
            ("solve_", Some("solve")),
            ("two_words_", Some("two_words")),
            ("MAIN__", None),
            ("_gfortran_set_args", None),
            ("main", None),
            ("__m_MOD_", None),
            ("_", None),
        ] {
            assert_eq!(decode(name).as_deref(), expected, "{name}");
        }
        assert_eq!(
            decode("__m_MOD_f.constprop.0").as_deref(),
            Some("m::f [clone .constprop.0]")
        );
    }

    #[test]
    fn files_of_fortran() {
        assert!(is_source("a.f90") && is_source("/x/dgemm.f") && is_source("b.F90"));
        assert!(!is_source("a.c") && !is_source("f"));
    }
}
