//! Man pages and shell completions, made from the command's table of flags.

use std::fs;
use std::io;
use std::path::Path;

use clap::ValueEnum;
use clap_complete::Shell;

/// Writes a page for the command and for each verb: `backtrail-cbf-decode.1`.
pub(crate) fn man(directory: &Path) -> io::Result<()> {
    fs::create_dir_all(directory)?;
    clap_mangen::generate_to(backtrail_cli::command().disable_help_subcommand(true), directory)
}

/// Writes a completion script for every shell that is known.
pub(crate) fn completions(directory: &Path) -> io::Result<()> {
    fs::create_dir_all(directory)?;
    for &shell in Shell::value_variants() {
        clap_complete::generate_to(shell, &mut backtrail_cli::command(), "backtrail", directory)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_verb_has_a_page_and_every_shell_its_verbs() {
        let directory = tempfile::tempdir().unwrap();
        man(directory.path()).unwrap();
        let page = fs::read_to_string(directory.path().join("backtrail-cbf-decode.1")).unwrap();
        assert!(page.contains("lenient") && page.contains("limit"));
        assert!(directory.path().join("backtrail.1").exists());

        let directory = tempfile::tempdir().unwrap();
        completions(directory.path()).unwrap();
        let mut scripts = 0;
        for entry in fs::read_dir(directory.path()).unwrap() {
            let script = fs::read_to_string(entry.unwrap().path()).unwrap();
            assert!(script.contains("lenient") && script.contains("decode"));
            scripts += 1;
        }
        assert_eq!(scripts, Shell::value_variants().len());
    }
}
