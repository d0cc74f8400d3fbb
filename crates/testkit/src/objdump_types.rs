//! The types in the output of `objdump --ctf`, without their positions, to find out whether another
//! file has them too.

use std::collections::{BTreeMap, BTreeSet};

/// The types and symbols of each dict, by the name of the archive's member; the parent's is empty.
#[derive(Clone, Debug, Default)]
pub struct Dicts(BTreeMap<String, Dict>);

/// Of one dict.
#[derive(Clone, Debug, Default)]
pub struct Dict {
    /// Each with its members or values, one a line.
    pub types: BTreeSet<String>,
    /// Objects and functions with their types.
    pub symbols: BTreeSet<String>,
}

impl Dicts {
    /// From objdump's text.
    pub fn parse(text: &str) -> Dicts {
        let mut dicts = Dicts::default();
        let (mut name, mut part, mut current) = (String::new(), "", String::new());
        for line in text.lines() {
            if let Some(member) = line.strip_prefix("CTF archive member: ") {
                dicts.add_type(&name, &mut current);
                name = member.trim_end_matches(':').to_owned();
                part = "";
            } else if line.starts_with("  ") && !line.starts_with("   ") && line.ends_with(':') {
                dicts.add_type(&name, &mut current);
                part = line.trim();
            } else if part == "Types:" {
                match line.strip_prefix("    ").filter(|rest| !rest.starts_with(' ')) {
                    Some(line) => {
                        dicts.add_type(&name, &mut current);
                        current = without_places(line);
                    }
                    None if !line.trim().is_empty() => {
                        current.push('\n');
                        current.push_str(&without_places(line.trim()));
                    }
                    None => {}
                }
            } else if matches!(part, "Data objects:" | "Function objects:") && line.contains(" -> ") {
                let dict = dicts.0.entry(name.clone()).or_default();
                dict.symbols.insert(without_places(line.trim()));
            }
        }
        dicts.add_type(&name, &mut current);
        dicts
    }

    fn add_type(&mut self, name: &str, current: &mut String) {
        if !current.is_empty() {
            let dict = self.0.entry(name.to_owned()).or_default();
            dict.types.insert(std::mem::take(current));
        }
    }

    /// Leaves types alone.
    pub fn forget_symbols(&mut self) {
        self.0.values_mut().for_each(|dict| dict.symbols.clear());
    }

    /// The names of the dicts of units.
    pub fn units(&self) -> Vec<&str> {
        self.0
            .keys()
            .map(String::as_str)
            .filter(|name| !name.is_empty())
            .collect()
    }

    /// A dict; the parent under the empty name.
    pub fn get(&self, name: &str) -> Option<&Dict> {
        self.0.get(name)
    }

    /// How many types there are.
    pub fn types(&self) -> usize {
        self.0.values().map(|dict| dict.types.len()).sum()
    }

    /// The types and symbols of `other` that these lack: those of a unit are looked up in the unit
    /// and in the parent, those of the parent anywhere. A declaration is present if the parent has
    /// the definition.
    pub fn missing(&self, other: &Dicts) -> Vec<String> {
        let mut missing = Vec::new();
        let empty = Dict::default();
        let parent = self.get("").unwrap_or(&empty);
        for (name, theirs) in &other.0 {
            let own = self.get(name).unwrap_or(&empty);
            let anywhere =
                |has: &dyn Fn(&Dict) -> bool| has(own) || has(parent) || (name.is_empty() && self.0.values().any(has));
            // A type declared for lack of a unique definition may be defined here, and references
            // to it show that.
            let defined = |text: &str| {
                let name = text.split_once("(kind 9) ").map(|(_, name)| format!(") {name} (size "));
                let defines = |text: &String, name: &str| {
                    ["(kind 6", "(kind 7", "(kind 8"]
                        .iter()
                        .any(|kind| text.starts_with(kind))
                        && text.contains(name)
                };
                name.is_some_and(|name| parent.types.iter().any(|text| defines(text, &name)))
            };
            // A member that is only declared, where here it is what the unit has.
            let has_member = |text: &str| {
                let first = text.lines().next().unwrap_or_default();
                let vague = text.lines().skip(1).any(|line| line.contains(": (kind 9) "));
                vague
                    && self
                        .0
                        .values()
                        .any(|dict| dict.types.iter().any(|own| own.lines().next() == Some(first)))
            };
            let types = theirs
                .types
                .iter()
                .filter(|text| !anywhere(&|dict| dict.types.contains(*text)));
            let symbols = theirs
                .symbols
                .iter()
                .filter(|text| !anywhere(&|dict| dict.symbols.contains(*text)));
            let loose: BTreeSet<String> = dicts_of(own, parent, &self.0, name.is_empty())
                .flat_map(|dict| dict.types.iter().map(|text| loosely(text)))
                .collect();
            let lacking = types.chain(symbols);
            let lacking = lacking.filter(|text| !defined(text) && !has_member(text) && !loose.contains(&loosely(text)));
            missing.extend(lacking.map(|text| format!("{name}: {text}")));
        }
        missing
    }
}

/// The dicts in which a dict's types are looked up.
fn dicts_of<'d>(
    own: &'d Dict,
    parent: &'d Dict,
    all: &'d BTreeMap<String, Dict>,
    anywhere: bool,
) -> impl Iterator<Item = &'d Dict> {
    let all = all.values().filter(move |_| anywhere);
    [own, parent].into_iter().chain(all)
}

/// The text with structs and unions that it refers to by their names alone: one may be declared
/// where another is defined. Those that are defined have a text of their own, and so do their
/// sizes.
fn loosely(text: &str) -> String {
    let (first, rest) = text.split_once('\n').unwrap_or((text, ""));
    let (head, referred) = match first.starts_with("(kind 6)") || first.starts_with("(kind 7)") {
        true => (first, rest.to_owned()),
        false => ("", text.to_owned()),
    };
    let mut referred = referred.replace("(kind 6)", "(kind 9)").replace("(kind 7)", "(kind 9)");
    while let Some(start) = referred.find("(size ") {
        let end = referred[start..]
            .find(')')
            .map_or(referred.len(), |end| start + end + 1);
        referred.replace_range(start..end, "");
    }
    let referred: Vec<&str> = referred.split(' ').filter(|word| !word.is_empty()).collect();
    format!("{head}\n{}", referred.join(" ").replace(" \n", "\n"))
}

/// The line without ids, which differ from file to file; without alignments, which objdump takes
/// from the first member, and that may be declared only; and without the braces of what look-ups by
/// name do not see.
fn without_places(line: &str) -> String {
    let mut kept = String::new();
    for word in line.split(' ') {
        let bare = word.trim_start_matches('{').trim_end_matches('}');
        let is_id = bare.starts_with("0x") && bare.ends_with(':');
        if is_id || word == "ID" {
            continue;
        }
        kept.push_str(bare);
        kept.push(' ');
    }
    while let Some(start) = kept.find("(aligned at ") {
        let end = kept[start..].find(')').map_or(kept.len(), |end| start + end + 1);
        kept.replace_range(start..end, "");
    }
    kept.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "
Contents of CTF section .ctf:

  Data objects:
    head -> 0x2: (kind 3) struct s * (size 0x8) (aligned at 0x8)

  Types:
    0x1: (kind 6) struct s (size 0x8) (aligned at 0x8)
         [0x0] next: ID 0x2: (kind 3) struct s * (size 0x8) (aligned at 0x8)
    0x2: (kind 3) struct s * (size 0x8) (aligned at 0x8) -> 0x1: (kind 6) struct s (size 0x8) (aligned at 0x8)

  Strings:
    0x0: 

CTF archive member: one.c:

  Types:
    0x80000001: (kind 1) int (format 0x1) (size 0x4) (aligned at 0x4)
";

    #[test]
    fn what_lacks_is_found() {
        let all = Dicts::parse(TEXT);
        assert_eq!((all.types(), all.units()), (3, vec!["one.c"]));
        let moved = Dicts::parse(&TEXT.replace("0x2:", "0x7:"));
        assert_eq!(all.missing(&moved), Vec::<String>::new());
        let declared = TEXT.replace(
            "-> 0x1: (kind 6) struct s (size 0x8) (aligned at 0x8)",
            "-> 0x7: (kind 9) struct s",
        );
        assert_eq!(all.missing(&Dicts::parse(&declared)), Vec::<String>::new());
        let larger = TEXT.replace("0x1: (kind 6) struct s (size 0x8)", "0x1: (kind 6) struct s (size 0x9)");
        assert_eq!(all.missing(&Dicts::parse(&larger)).len(), 1);
        let other = Dicts::parse(&TEXT.replace("[0x0]", "[0x20]"));
        assert_eq!(all.missing(&other).len(), 1);
        let without = Dicts::parse(&TEXT[..TEXT.find("  Types").unwrap()]);
        assert_eq!(without.missing(&all).len(), 3);
        assert_eq!(without.get("").unwrap().symbols.len(), 1);
        let parent = Dicts::parse(&TEXT[..TEXT.find("CTF archive").unwrap()]);
        assert_eq!(parent.missing(&all).len(), 1);
    }
}
