//! The names of compiled methods, in the form of HotSpot's own perf maps (`Method::external_name`).

use super::{Blob, HotSpot, Machine};
use crate::announced::{Function, Made};
use crate::process_code::{ProcessCode, word};

/// Bytes of the longest symbol that is read; HotSpot's have 65,535 at most.
const LONGEST_SYMBOL: u64 = 4 << 10;

/// What perf maps call the interpreter.
const INTERPRETER: &str = "Interpreter";

impl<P: Copy + Eq> HotSpot<P> {
    /// The function at `pc`, if HotSpot made its code.
    pub(crate) fn function(&mut self, process: &impl ProcessCode<Place = P>, pc: u64) -> Option<Made> {
        let machine = self.machine(process)?;
        if let Some(addresses) = machine.interpreter(pc) {
            let function = Function::new(addresses, INTERPRETER.to_owned());
            return Some(Made {
                function,
                version: None,
            });
        }
        let blob = machine.blob(pc)?;
        let (name, version) = match blob.is_method() {
            true => {
                let version = machine.field(blob.header, "nmethod", "_compile_id");
                (machine.name(machine.compiled_method(&blob)?)?, version)
            }
            false => (String::from_utf8_lossy(&blob.name).into_owned(), None),
        };
        let function = Function::new(blob.code..blob.end, name);
        Some(Made { function, version })
    }
}

impl<C: ProcessCode> Machine<'_, C> {
    pub(super) fn compiled_method(&self, blob: &Blob) -> Option<u64> {
        let since_23 = self.field(blob.header, "nmethod", "_method");
        since_23.or_else(|| self.field(blob.header, "CompiledMethod", "_method"))
    }

    pub(super) fn name(&self, method: u64) -> Option<String> {
        let constant_method = self.field(method, "Method", "_constMethod")?;
        let pool = self.field(constant_method, "ConstMethod", "_constants")?;
        let class = self.field(pool, "ConstantPool", "_pool_holder")?;
        let class = self.symbol(self.field(class, "Klass", "_name")?)?;
        let constant = |field| self.constant(pool, self.field(constant_method, "ConstMethod", field)?);
        let (name, signature) = (constant("_name_index")?, constant("_signature_index")?);
        Some(external_name(&class, &name, &signature).unwrap_or_else(|| format!("{}.{name}", dotted(&class))))
    }

    /// A symbol among the constants of a class.
    fn constant(&self, pool: u64, index: u64) -> Option<String> {
        if index >= self.field(pool, "ConstantPool", "_length")? {
            return None;
        }
        let constants = pool.checked_add(self.published.constants?)?;
        self.symbol(word(self.process, constants.checked_add(index * 8)?)?)
    }

    fn symbol(&self, at: u64) -> Option<String> {
        let length = self.field(at, "Symbol", "_length")?;
        let body = at.checked_add(self.published.get("Symbol", "_body")?.offset)?;
        let mut bytes = vec![0; length.min(LONGEST_SYMBOL) as usize];
        (self.process.read(body, &mut bytes) == bytes.len()).then(|| String::from_utf8_lossy(&bytes).into_owned())
    }
}

/// The name of a class in the language.
fn dotted(class: &str) -> String {
    class.replace('/', ".")
}

/// `java.lang.String Work.escape(java.lang.String, int)` for a method of the signature
/// `(Ljava/lang/String;I)Ljava/lang/String;`.
fn external_name(class: &str, name: &str, signature: &str) -> Option<String> {
    let mut rest = signature.strip_prefix('(')?;
    let mut arguments = Vec::new();
    while !rest.starts_with(')') {
        let (argument, after) = field_type(rest)?;
        arguments.push(argument);
        rest = after;
    }
    let (result, "") = field_type(&rest[1..])? else {
        return None;
    };
    Some(format!("{result} {}.{name}({})", dotted(class), arguments.join(", ")))
}

/// The type at the beginning of a descriptor ("The Java Virtual Machine Specification", 4.3), and
/// what follows it.
fn field_type(descriptor: &str) -> Option<(String, &str)> {
    let element = descriptor.trim_start_matches('[');
    let dimensions = descriptor.len() - element.len();
    let first = element.chars().next()?;
    let (name, rest) = match first {
        'L' => {
            let (class, rest) = element[1..].split_once(';')?;
            (dotted(class), rest)
        }
        _ => (primitive(first)?.to_owned(), &element[1..]),
    };
    Some((name + &"[]".repeat(dimensions), rest))
}

fn primitive(letter: char) -> Option<&'static str> {
    Some(match letter {
        'B' => "byte",
        'C' => "char",
        'D' => "double",
        'F' => "float",
        'I' => "int",
        'J' => "long",
        'S' => "short",
        'V' => "void",
        'Z' => "boolean",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn methods_have_the_names_of_the_language() {
        let named = |signature| external_name("java/util/Map$1", "put", signature);
        assert_eq!(
            named("(Ljava/lang/String;I[[J[Ljava/lang/Object;)V").as_deref(),
            Some("void java.util.Map$1.put(java.lang.String, int, long[][], java.lang.Object[])")
        );
        assert_eq!(named("()[Z").as_deref(), Some("boolean[] java.util.Map$1.put()"));
    }

    #[test]
    fn malformed_signatures_are_refused() {
        for signature in ["", "(", "()", "(I", "(X)V", "(Ljava)V", "()VV", "()[", "()L;é", "(é)V"] {
            assert_eq!(external_name("A", "f", signature), None, "{signature}");
        }
    }
}
