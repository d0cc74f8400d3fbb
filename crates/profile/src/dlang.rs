//! Names of D's symbols as their programmers wrote them, as `c++filt -s dlang` shows them.
//!
//! The grammar is that of "Name Mangling" in D's specification, with back references.

/// How many parts of a name are read: a back reference repeats parts, also in parts of its own.
const MOST_PARTS: u32 = 1 << 14;
/// The deepest nesting of parts.
const DEEPEST: u32 = 128;

/// The name without mangling; `None` if it is not one of D, or is longer than this many bytes.
pub(crate) fn demangle(name: &str, longest: usize) -> Option<String> {
    if name == "_Dmain" {
        return Some("D main".to_owned());
    }
    // A clone's suffix follows a dot, which no mangled name has.
    let (name, suffix) = name.split_at(name.find('.').unwrap_or(name.len()));
    let mut reader = Reader {
        text: name.as_bytes(),
        at: 0,
        last_reference: name.len(),
        longest,
        left: MOST_PARTS,
        depth: 0,
    };
    let mut out = String::new();
    reader.mangled(&mut out)?;
    (reader.at == name.len()).then_some(())?;
    if !suffix.is_empty() {
        out += &format!(" [clone {suffix}]");
    }
    Some(out)
}

struct Reader<'n> {
    text: &'n [u8],
    at: usize,
    /// Where the innermost back reference to a type is; those inside of it are before it.
    last_reference: usize,
    longest: usize,
    left: u32,
    depth: u32,
}

impl Reader<'_> {
    /// The next byte; 0 at the end.
    fn peek(&self) -> u8 {
        self.text.get(self.at).copied().unwrap_or(0)
    }

    fn rest(&self) -> &[u8] {
        self.text.get(self.at..).unwrap_or_default()
    }

    fn next(&mut self) -> u8 {
        let byte = self.peek();
        self.at += 1;
        byte
    }

    fn skip(&mut self, text: &[u8]) -> bool {
        let is_next = self.rest().starts_with(text);
        if is_next {
            self.at += text.len();
        }
        is_next
    }

    /// Counts a part, against names that repeat themselves without end.
    fn part(&mut self, out: &str) -> Option<()> {
        self.left = self.left.checked_sub(1)?;
        (out.len() <= self.longest && self.depth <= DEEPEST).then_some(())
    }

    fn number(&mut self) -> Option<usize> {
        let digits = self.rest().iter().take_while(|byte| byte.is_ascii_digit()).count();
        let text = std::str::from_utf8(self.rest().get(..digits)?).ok()?;
        let number = text.parse().ok()?;
        self.at += digits;
        Some(number)
    }

    /// `_D`, a qualified name and a type, which is not shown.
    fn mangled(&mut self, out: &mut String) -> Option<()> {
        self.skip(b"_D").then_some(())?;
        self.qualified(out, true)?;
        if self.skip(b"Z") {
            return Some(());
        }
        self.type_of(&mut String::new())
    }

    /// Where a back reference at this position leads, and where it ends.
    fn reference(&self, at: usize) -> Option<(usize, usize)> {
        let mut value = 0usize;
        for (index, byte) in self.text.get(at + 1..)?.iter().enumerate() {
            let digit = match byte {
                b'A'..=b'Z' => byte - b'A',
                b'a'..=b'z' => byte - b'a',
                _ => return None,
            };
            value = value.checked_mul(26)?.checked_add(digit.into())?;
            if byte.is_ascii_lowercase() {
                let to = at.checked_sub(value).filter(|_| value > 0)?;
                return Some((to, at + index + 2));
            }
        }
        None
    }

    /// Whether a name begins at this position.
    fn is_name(&self, at: usize) -> bool {
        let byte = |at: usize| self.text.get(at).copied().unwrap_or(0);
        match byte(at) {
            b'0'..=b'9' => true,
            b'_' => byte(at + 1) == b'_' && matches!(byte(at + 2), b'T' | b'U'),
            b'Q' => self.reference(at).is_some_and(|(to, _)| byte(to).is_ascii_digit()),
            _ => false,
        }
    }

    fn qualified(&mut self, out: &mut String, modifiers_shown: bool) -> Option<()> {
        self.part(out)?;
        let mut count = 0;
        loop {
            // Names of what has none.
            if self.peek() == b'0' {
                while self.peek() == b'0' {
                    self.at += 1;
                }
            } else {
                if count > 0 {
                    out.push('.');
                }
                count += 1;
                self.identifier(out)?;
                if self.peek() == b'M' || is_convention(self.peek()) {
                    let (start, before, reference) = (self.at, out.len(), self.last_reference);
                    let read = self.parameters_of_name(out, modifiers_shown);
                    // The type of the whole name has none after it.
                    if read.is_none() || self.peek() == 0 {
                        (self.at, self.last_reference) = (start, reference);
                        out.truncate(before);
                        return Some(());
                    }
                }
            }
            if !self.is_name(self.at) {
                return Some(());
            }
        }
    }

    /// The parameters of a function that is a part of a name.
    fn parameters_of_name(&mut self, out: &mut String, modifiers_shown: bool) -> Option<()> {
        let mut modifiers = String::new();
        if self.skip(b"M") {
            self.modifiers(&mut modifiers)?;
        }
        self.convention(&mut String::new())?;
        self.attributes(&mut String::new())?;
        self.parameters(out)?;
        if modifiers_shown {
            *out += &modifiers;
        }
        Some(())
    }

    fn identifier(&mut self, out: &mut String) -> Option<()> {
        self.part(out)?;
        if self.peek() == b'Q' {
            let (to, end) = self.reference(self.at)?;
            self.at = to;
            let len = self.number()?;
            self.own_name(out, len)?;
            self.at = end;
            return Some(());
        }
        if self.is_template() {
            return self.template(out, None);
        }
        let len = self.number().filter(|&len| len > 0)?;
        let name = self.rest().get(..len)?;
        if len >= 5 && self.is_template() {
            return self.template(out, Some(len));
        }
        // Declarations that share a name have another one around them.
        let is_fake = name
            .strip_prefix(b"__S")
            .is_some_and(|rest| !rest.is_empty() && rest.iter().all(u8::is_ascii_digit));
        if is_fake {
            self.at += len;
            self.depth += 1;
            let read = self.identifier(out);
            self.depth -= 1;
            return read;
        }
        self.own_name(out, len)
    }

    fn is_template(&self) -> bool {
        matches!(self.rest(), [b'_', b'_', b'T' | b'U', ..])
    }

    /// A name of this length.
    fn own_name(&mut self, out: &mut String, len: usize) -> Option<()> {
        let name = self.rest().get(..len)?;
        let is_last = self.rest().get(len) == Some(&b'Z');
        let of = match name {
            b"__initZ" | b"__init" if is_last => "initializer for ",
            b"__vtbl" if is_last => "vtable for ",
            b"__Class" if is_last => "ClassInfo for ",
            b"__Interface" if is_last => "Interface for ",
            b"__ModuleInfo" if is_last => "ModuleInfo for ",
            _ => "",
        };
        if !of.is_empty() {
            out.insert_str(0, of);
            out.pop();
            self.at += len;
            return Some(());
        }
        match name {
            b"__ctor" => out.push_str("this"),
            b"__dtor" => out.push_str("~this"),
            b"__postblit" if self.rest().get(len..)?.starts_with(b"MFZ") => {
                out.push_str("this(this)");
                self.at += 3;
            }
            name => out.push_str(std::str::from_utf8(name).ok()?),
        }
        self.at += len;
        Some(())
    }

    fn template(&mut self, out: &mut String, len: Option<usize>) -> Option<()> {
        let start = self.at;
        (self.is_name(start + 3) && self.text.get(start + 3) != Some(&b'0')).then_some(())?;
        self.at += 3;
        self.depth += 1;
        self.identifier(out)?;
        out.push_str("!(");
        self.template_arguments(out)?;
        out.push(')');
        self.depth -= 1;
        len.is_none_or(|len| self.at - start == len).then_some(())
    }

    fn template_arguments(&mut self, out: &mut String) -> Option<()> {
        let mut count = 0;
        while !self.skip(b"Z") {
            if count > 0 {
                out.push_str(", ");
            }
            count += 1;
            self.skip(b"H");
            match self.next() {
                b'S' => self.symbol_argument(out)?,
                b'T' => self.type_of(out)?,
                b'V' => {
                    let of = match self.peek() {
                        b'Q' => self.text.get(self.reference(self.at)?.0).copied()?,
                        of => of,
                    };
                    let mut name = String::new();
                    self.type_of(&mut name)?;
                    self.value(out, &name, of)?;
                }
                b'X' => {
                    let len = self.number()?;
                    *out += std::str::from_utf8(self.rest().get(..len)?).ok()?;
                    self.at += len;
                }
                _ => return None,
            }
        }
        Some(())
    }

    fn symbol_argument(&mut self, out: &mut String) -> Option<()> {
        if self.rest().starts_with(b"_D") && self.is_name(self.at + 2) {
            return self.nested(|reader| reader.mangled(out));
        }
        if self.peek() == b'Q' {
            return self.nested(|reader| reader.qualified(out, false));
        }
        // Old compilers put a length before the name, which may begin with digits too.
        let start = self.at;
        let len = self.number().filter(|&len| len > 0)?;
        let (end, before) = (self.at, out.len());
        let mut splits = vec![(end, Some(len))];
        let mut shorter = len / 10;
        while shorter > 0 {
            let at = splits.last()?.0 - 1;
            splits.push((at, Some(shorter)));
            shorter /= 10;
        }
        splits.push((start, None));
        for (at, len) in splits {
            self.at = at;
            let read = match self.rest().starts_with(b"_D") && self.is_name(at + 2) {
                true => self.nested(|reader| reader.mangled(out)),
                false if self.is_name(at) => self.nested(|reader| reader.qualified(out, false)),
                false => None,
            };
            if read.is_some() && len.is_none_or(|len| self.at - at == len) {
                return Some(());
            }
            out.truncate(before);
        }
        None
    }

    fn nested(&mut self, read: impl FnOnce(&mut Self) -> Option<()>) -> Option<()> {
        self.depth += 1;
        let read = read(self);
        self.depth -= 1;
        read
    }

    fn convention(&mut self, out: &mut String) -> Option<()> {
        *out += match self.next() {
            b'F' => "",
            b'U' => "extern(C) ",
            b'W' => "extern(Windows) ",
            b'V' => "extern(Pascal) ",
            b'R' => "extern(C++) ",
            b'Y' => "extern(Objective-C) ",
            _ => return None,
        };
        Some(())
    }

    fn attributes(&mut self, out: &mut String) -> Option<()> {
        while self.peek() == b'N' {
            *out += match self.text.get(self.at + 1)? {
                b'a' => "pure ",
                b'b' => "nothrow ",
                b'c' => "ref ",
                b'd' => "@property ",
                b'e' => "@trusted ",
                b'f' => "@safe ",
                b'i' => "@nogc ",
                b'j' => "return ",
                b'l' => "scope ",
                b'm' => "@live ",
                // The first parameter has begun.
                b'g' | b'h' | b'k' | b'n' => return Some(()),
                _ => return None,
            };
            self.at += 2;
        }
        Some(())
    }

    fn parameters(&mut self, out: &mut String) -> Option<()> {
        out.push('(');
        let mut count = 0;
        loop {
            match self.peek() {
                b'X' | b'Y' => {
                    if self.next() == b'Y' && count > 0 {
                        out.push_str(", ");
                    }
                    out.push_str("...");
                    break;
                }
                b'Z' => {
                    self.at += 1;
                    break;
                }
                _ => {}
            }
            if count > 0 {
                out.push_str(", ");
            }
            count += 1;
            if self.skip(b"M") {
                out.push_str("scope ");
            }
            if self.skip(b"Nk") {
                out.push_str("return ");
            }
            let of = match self.peek() {
                b'I' => "in ",
                b'J' => "out ",
                b'K' => "ref ",
                b'L' => "lazy ",
                _ => "",
            };
            if !of.is_empty() {
                out.push_str(of);
                self.at += 1;
            }
            if of == "in " && self.skip(b"K") {
                out.push_str("ref ");
            }
            self.type_of(out)?;
        }
        out.push(')');
        Some(())
    }

    fn modifiers(&mut self, out: &mut String) -> Option<()> {
        loop {
            let (text, is_last) = match self.peek() {
                b'x' => (" const", true),
                b'y' => (" immutable", true),
                b'O' => (" shared", false),
                b'N' if self.text.get(self.at + 1) == Some(&b'g') => {
                    self.at += 1;
                    (" inout", false)
                }
                b'N' => return None,
                _ => return Some(()),
            };
            self.at += 1;
            out.push_str(text);
            if is_last {
                return Some(());
            }
        }
    }

    fn type_of(&mut self, out: &mut String) -> Option<()> {
        self.part(out)?;
        self.nested(|reader| reader.type_here(out))
    }

    fn enclosed(&mut self, out: &mut String, start: &str) -> Option<()> {
        out.push_str(start);
        self.type_of(out)?;
        out.push(')');
        Some(())
    }

    fn type_here(&mut self, out: &mut String) -> Option<()> {
        let first = self.peek();
        if is_convention(first) {
            self.function(out)?;
            out.push_str("function");
            return Some(());
        }
        self.at += 1;
        let name = match first {
            b'O' => return self.enclosed(out, "shared("),
            b'x' => return self.enclosed(out, "const("),
            b'y' => return self.enclosed(out, "immutable("),
            b'N' => match self.next() {
                b'g' => return self.enclosed(out, "inout("),
                b'h' => return self.enclosed(out, "__vector("),
                b'n' => "typeof(*null)",
                _ => return None,
            },
            b'A' => {
                self.type_of(out)?;
                "[]"
            }
            b'G' => {
                let start = self.at;
                self.number()?;
                let count = std::str::from_utf8(self.text.get(start..self.at)?).ok()?;
                let count = count.to_owned();
                self.type_of(out)?;
                *out += &format!("[{count}]");
                ""
            }
            b'H' => {
                let mut key = String::new();
                self.type_of(&mut key)?;
                self.type_of(out)?;
                *out += &format!("[{key}]");
                ""
            }
            b'P' if is_convention(self.peek()) => {
                self.function(out)?;
                "function"
            }
            b'P' => {
                self.type_of(out)?;
                "*"
            }
            b'C' | b'S' | b'E' | b'T' => return self.qualified(out, false),
            b'D' => {
                let mut modifiers = String::new();
                self.modifiers(&mut modifiers)?;
                match self.peek() {
                    b'Q' => self.referred(out, true)?,
                    _ => self.function(out)?,
                }
                out.push_str("delegate");
                *out += &modifiers;
                ""
            }
            b'B' => {
                let count = self.number()?;
                out.push_str("Tuple!(");
                for index in 0..count {
                    if index > 0 {
                        out.push_str(", ");
                    }
                    self.type_of(out)?;
                }
                ")"
            }
            b'Q' => {
                self.at -= 1;
                return self.referred(out, false);
            }
            b'z' => match self.next() {
                b'i' => "cent",
                b'k' => "ucent",
                _ => return None,
            },
            first => basic(first)?,
        };
        out.push_str(name);
        Some(())
    }

    /// The type that a back reference leads to.
    fn referred(&mut self, out: &mut String, is_function: bool) -> Option<()> {
        let from = self.at;
        (from < self.last_reference).then_some(())?;
        let (to, end) = self.reference(from)?;
        let before = std::mem::replace(&mut self.last_reference, from);
        self.at = to;
        match is_function {
            true => self.function(out)?,
            false => self.type_of(out)?,
        }
        (self.at, self.last_reference) = (end, before);
        Some(())
    }

    fn function(&mut self, out: &mut String) -> Option<()> {
        let (mut attributes, mut parameters, mut returns) = (String::new(), String::new(), String::new());
        self.convention(out)?;
        self.attributes(&mut attributes)?;
        self.parameters(&mut parameters)?;
        self.type_of(&mut returns)?;
        *out += &format!("{returns}{parameters} {attributes}");
        Some(())
    }

    /// A value of a template's parameter, of a type with this name that begins with this letter.
    fn value(&mut self, out: &mut String, name: &str, of: u8) -> Option<()> {
        self.part(out)?;
        self.nested(|reader| reader.value_here(out, name, of))
    }

    fn value_here(&mut self, out: &mut String, name: &str, of: u8) -> Option<()> {
        match self.next() {
            b'n' => out.push_str("null"),
            b'N' => {
                out.push('-');
                self.integer(out, of)?;
            }
            b'i' => self.integer(out, of)?,
            b'0'..=b'9' => {
                self.at -= 1;
                self.integer(out, of)?;
            }
            b'e' => self.real(out)?,
            b'c' => {
                self.real(out)?;
                out.push('+');
                self.skip(b"c").then_some(())?;
                self.real(out)?;
                out.push('i');
            }
            kind @ (b'a' | b'w' | b'd') => self.text(out, kind)?,
            b'A' => {
                out.push('[');
                self.values(out, of == b'H')?;
                out.push(']');
            }
            b'S' => {
                out.push_str(name);
                out.push('(');
                self.values(out, false)?;
                out.push(')');
            }
            b'f' if self.is_name(self.at + 2) => self.mangled(out)?,
            _ => return None,
        }
        Some(())
    }

    fn values(&mut self, out: &mut String, is_map: bool) -> Option<()> {
        let count = self.number()?;
        for index in 0..count {
            if index > 0 {
                out.push_str(", ");
            }
            self.value(out, "", 0)?;
            if is_map {
                out.push(':');
                self.value(out, "", 0)?;
            }
        }
        Some(())
    }

    fn integer(&mut self, out: &mut String, of: u8) -> Option<()> {
        let start = self.at;
        let value = self.number()?;
        let digits = std::str::from_utf8(self.text.get(start..self.at)?).ok()?;
        *out += &match of {
            b'a' if (0x20..0x7f).contains(&value) => format!("'{}'", char::from(value as u8)),
            b'a' => format!("'\\x{value:02x}'"),
            b'u' => format!("'\\u{value:04x}'"),
            b'w' => format!("'\\U{value:08x}'"),
            b'b' => (value != 0).to_string(),
            b'h' | b't' | b'k' => format!("{digits}u"),
            b'l' => format!("{digits}L"),
            b'm' => format!("{digits}uL"),
            _ => digits.to_owned(),
        };
        Some(())
    }

    fn real(&mut self, out: &mut String) -> Option<()> {
        for (text, shown) in [(&b"NAN"[..], "NaN"), (b"INF", "Inf"), (b"NINF", "-Inf")] {
            if self.skip(text) {
                out.push_str(shown);
                return Some(());
            }
        }
        if self.skip(b"N") {
            out.push('-');
        }
        let first = Some(self.next()).filter(u8::is_ascii_hexdigit)?;
        *out += &format!("0x{}.", char::from(first));
        while self.peek().is_ascii_hexdigit() {
            out.push(self.next().into());
        }
        self.skip(b"P").then_some(())?;
        out.push('p');
        if self.skip(b"N") {
            out.push('-');
        }
        while self.peek().is_ascii_digit() {
            out.push(self.next().into());
        }
        Some(())
    }

    fn text(&mut self, out: &mut String, kind: u8) -> Option<()> {
        let len = self.number()?;
        self.skip(b"_").then_some(())?;
        out.push('"');
        for _ in 0..len {
            let digits = std::str::from_utf8(self.rest().get(..2)?).ok()?;
            match u8::from_str_radix(digits, 16).ok()? {
                b'\t' => out.push_str("\\t"),
                b'\n' => out.push_str("\\n"),
                b'\r' => out.push_str("\\r"),
                12 => out.push_str("\\f"),
                11 => out.push_str("\\v"),
                byte @ b' '..=b'~' => out.push(byte.into()),
                _ => *out += &format!("\\x{digits}"),
            }
            self.at += 2;
            self.part(out)?;
        }
        out.push('"');
        if kind != b'a' {
            out.push(kind.into());
        }
        Some(())
    }
}

fn is_convention(byte: u8) -> bool {
    matches!(byte, b'F' | b'U' | b'V' | b'W' | b'R' | b'Y')
}

fn basic(letter: u8) -> Option<&'static str> {
    const NAMES: [(u8, &str); 23] = [
        (b'n', "typeof(null)"),
        (b'v', "void"),
        (b'g', "byte"),
        (b'h', "ubyte"),
        (b's', "short"),
        (b't', "ushort"),
        (b'i', "int"),
        (b'k', "uint"),
        (b'l', "long"),
        (b'm', "ulong"),
        (b'f', "float"),
        (b'd', "double"),
        (b'e', "real"),
        (b'o', "ifloat"),
        (b'p', "idouble"),
        (b'j', "ireal"),
        (b'q', "cfloat"),
        (b'r', "cdouble"),
        (b'c', "creal"),
        (b'b', "bool"),
        (b'a', "char"),
        (b'u', "wchar"),
        (b'w', "dchar"),
    ];
    NAMES.iter().find(|(known, _)| *known == letter).map(|(_, name)| *name)
}

#[cfg(test)]
mod tests {
    fn demangle(name: &str) -> Option<String> {
        super::demangle(name, 8 << 10)
    }

    /// From D's library, and the names that `c++filt -s dlang` gives.
    #[test]
    fn names_of_d() {
        for (name, expected) in [
            ("_Dmain", "D main"),
            ("_D3app3runFAyaiZv", "app.run(immutable(char)[], int)"),
            (
                "_D3std5array__T8AppenderTAyaZQo3putMFNaNbNfQvZv",
                "std.array.Appender!(immutable(char)[]).Appender.put(real)",
            ),
            ("_D3app5Shape6__initZ", "initializer for app.Shape"),
            ("_D3app5Shape6__vtblZ", "vtable for app.Shape"),
            ("_D3app12__ModuleInfoZ", "ModuleInfo for app"),
            ("_D3app5Shape4areaMxFNaNbNdNiNfZd", "app.Shape.area() const"),
            (
                "_D3app4walkFDFNbAyaZiHAyamZv",
                "app.walk(int(immutable(char)[]) nothrow delegate, ulong[immutable(char)[]])",
            ),
            (
                "_D3app1fFLbKiJdMPFiZlXv",
                "app.f(lazy bool, ref int, out double, scope long(int) function...)",
            ),
            ("_D3app1gUiYv", "app.g(int, ...)"),
            (
                "_D2rt3aaA4Impl6__ctorMFNcMxC25TypeInfo_AssociativeArraymZSQCeQCeQCd",
                "rt.aaA.Impl.this(scope const(TypeInfo_AssociativeArray), ulong)",
            ),
            (
                "_D3std5stdio17LockingTextReader10__postblitMFZv",
                "std.stdio.LockingTextReader.this(this)",
            ),
            ("_D15TypeInfo_HAyaQd6__initZ", "initializer for TypeInfo_HAyaQd"),
            ("_D15TypeInfo_Vector6__initZ", "initializer for TypeInfo_Vector"),
            (
                "_D3std11parallelism__T4TaskSQBaQz3runTDFZvZQv6__dtorMFNfZv",
                "std.parallelism.Task!(std.parallelism.run, void() delegate).Task.~this()",
            ),
        ] {
            assert_eq!(demangle(name).as_deref(), Some(expected), "{name}");
        }
    }

    #[test]
    fn other_names_are_not_d() {
        for name in [
            "",
            "_D",
            "_Do_not",
            "_D3app",
            "_D3app5Shape6__ctorMFiZCQxQt",
            "_D9999999999999999999999a",
        ] {
            assert_eq!(demangle(name), None, "{name}");
        }
    }

    /// References that lead back to each other, and arrays in arrays.
    #[test]
    fn names_without_end_are_refused() {
        for name in [
            format!("_D1f{}", "F".repeat(1 << 16)),
            format!("_D1fF{}iZv", "A".repeat(1 << 16)),
            format!("_D1fF{}Zv", "Qb".repeat(1 << 12)),
            format!("_D1fB{}iZv", "99999999999B".repeat(64)),
        ] {
            assert_eq!(demangle(&name), None);
        }
    }

    #[test]
    fn clones_keep_their_suffix() {
        let shown = demangle("_D3app1gUiYv.cold");
        assert_eq!(shown.as_deref(), Some("app.g(int, ...) [clone .cold]"));
    }
}
