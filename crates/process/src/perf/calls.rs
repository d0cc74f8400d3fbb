//! Places at which calls of functions begin and end.

use std::path::PathBuf;

use super::error::Entry;

/// A function whose calls are followed until they return.
///
/// The kernel's own way, a return probe, replaces the return address on the stack: an exception
/// that passes such a frame ends the program, as does Go's runtime when it moves the stack, other
/// observers' stacks end there, and calls nested deeper than 64 are left out. Probes at the
/// instructions that return change nothing that a program can see.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TracedFunction {
    /// The file that contains it.
    pub file: PathBuf,
    /// The offset of its first instruction in the file.
    pub entry: u64,
    /// Where it returns, by offsets in the file.
    pub exits: Vec<Exit>,
    /// Whether its code jumps to its first instruction: passing that one need not be a call.
    pub repeats: bool,
}

/// An instruction that ends calls of a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Exit {
    /// Its offset in the file.
    pub offset: u64,
    /// What it is.
    pub kind: ExitKind,
}

/// What an instruction means for a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ExitKind {
    /// A return of the function itself.
    Return,
    /// A return of code that it may have jumped to, and that may have been called by others.
    ReturnElsewhere,
    /// A jump that may leave it, to code that is not followed.
    Jump,
}

/// What passing a probe means for the function with this number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Role {
    /// The function.
    pub function: u32,
    /// `None`: a call begins.
    pub exit: Option<ExitKind>,
}

/// A place where threads are stopped for a moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallProbe {
    /// The place.
    pub place: Entry,
    /// What it means, beginnings of calls first.
    pub roles: Vec<Role>,
}

impl CallProbe {
    /// Whether samples there have stacks.
    pub fn has_stack(&self) -> bool {
        self.roles.iter().any(|role| role.exit.is_none())
    }
}

/// The probes of several functions: one for each place, those where calls begin first. Samples have
/// their numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CallProbes(Vec<CallProbe>);

impl CallProbes {
    /// The probes that these functions need.
    pub fn of(functions: &[TracedFunction]) -> CallProbes {
        let mut probes = CallProbes::default();
        for (function, number) in functions.iter().zip(0..) {
            probes.add(
                function,
                function.entry,
                Role {
                    function: number,
                    exit: None,
                },
            );
        }
        for (function, number) in functions.iter().zip(0..) {
            for exit in &function.exits {
                probes.add(
                    function,
                    exit.offset,
                    Role {
                        function: number,
                        exit: Some(exit.kind),
                    },
                );
            }
        }
        probes
    }

    fn add(&mut self, function: &TracedFunction, offset: u64, role: Role) {
        let place = Entry {
            file: function.file.clone(),
            offset,
        };
        match self.0.iter_mut().find(|probe| probe.place == place) {
            Some(probe) => probe.roles.push(role),
            None => self.0.push(CallProbe {
                place,
                roles: vec![role],
            }),
        }
    }

    /// The probes, by number.
    pub fn all(&self) -> &[CallProbe] {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_have_one_probe() {
        let function = |entry, exits: &[(u64, ExitKind)]| TracedFunction {
            file: PathBuf::from("/a"),
            entry,
            exits: exits.iter().map(|&(offset, kind)| Exit { offset, kind }).collect(),
            repeats: false,
        };
        // The second one only returns, and the first one may jump to it.
        let functions = [
            function(16, &[(24, ExitKind::Return), (32, ExitKind::ReturnElsewhere)]),
            function(32, &[(32, ExitKind::Return)]),
        ];
        let probes = CallProbes::of(&functions);
        let offsets: Vec<u64> = probes.all().iter().map(|probe| probe.place.offset).collect();
        assert_eq!(offsets, [16, 32, 24]);
        let roles: Vec<_> = probes.all()[1]
            .roles
            .iter()
            .map(|role| (role.function, role.exit))
            .collect();
        let expected = [
            (1, None),
            (0, Some(ExitKind::ReturnElsewhere)),
            (1, Some(ExitKind::Return)),
        ];
        assert_eq!(roles, expected);
        assert!(probes.all()[1].has_stack() && !probes.all()[2].has_stack());
    }
}
