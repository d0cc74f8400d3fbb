//! Random C types and signatures, laid out by independent rules.

use backtrail_args::shape::{Form, Leaf, Scalar, Shape};

/// Random numbers that are the same in every run.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        (self.next() >> 32) % limit
    }

    pub(crate) fn one_in(&mut self, count: u64) -> bool {
        self.below(count) == 0
    }
}

/// What a compiler supports.
#[derive(Clone, Copy)]
pub(crate) struct Dialect {
    pub(crate) x86: bool,
    pub(crate) clang: bool,
    /// The longest vector of one register.
    pub(crate) vector: u64,
}

/// A type: its name in C, and what it is.
#[derive(Clone)]
pub(crate) struct Type {
    pub(crate) c: String,
    pub(crate) shape: Shape,
    /// Bytes that may only be 0 or 1.
    pub(crate) booleans: Vec<u64>,
    /// Whether it may be a variadic argument.
    pub(crate) promoted: bool,
}

/// A signature.
pub(crate) struct Signature {
    pub(crate) result: Option<Type>,
    pub(crate) arguments: Vec<Type>,
    /// Number of named arguments; the others are variadic.
    pub(crate) named: usize,
}

/// Makes types and collects their definitions in `definitions`.
pub(crate) struct Types {
    pub(crate) dialect: Dialect,
    pub(crate) random: Random,
    pub(crate) definitions: String,
    count: usize,
}

fn scalar(c: &str, scalar: Scalar, promoted: bool) -> Type {
    Type {
        c: c.to_owned(),
        shape: Shape::scalar(scalar),
        booleans: if c == "_Bool" { vec![0] } else { Vec::new() },
        promoted,
    }
}

impl Types {
    pub(crate) fn new(dialect: Dialect, seed: u64) -> Types {
        Types {
            dialect,
            random: Random::new(seed),
            definitions: String::new(),
            count: 0,
        }
    }

    pub(crate) fn signature(&mut self) -> Signature {
        let result = (!self.random.one_in(3)).then(|| self.any(0));
        let count = match self.random.below(4) {
            0 => 1 + self.random.below(3),
            1 | 2 => 2 + self.random.below(8),
            _ => 6 + self.random.below(14),
        } as usize;
        let mut arguments: Vec<Type> = (0..count).map(|_| self.any(0)).collect();
        let named = if self.random.one_in(4) {
            1 + self.random.below(count as u64) as usize
        } else {
            count
        };
        for argument in &mut arguments[named..] {
            while !argument.promoted {
                *argument = self.any(0);
            }
        }
        // LLVM passes no vector of more than 16 bytes in a register to a function with `...`, named
        // or not; gcc does, as the document has it.
        if named < count && self.dialect.x86 && self.dialect.clang {
            for argument in &mut arguments[..named] {
                while argument.shape.align > 16 {
                    *argument = self.any(0);
                }
            }
        }
        Signature {
            result,
            arguments,
            named,
        }
    }

    fn any(&mut self, depth: u32) -> Type {
        match self.random.below(20) {
            0..=5 => self.integer(),
            6..=9 => self.float(),
            10 => self.complex(),
            11 | 12 => self.vector(depth),
            _ if depth < 3 => self.aggregate(depth),
            _ => self.integer(),
        }
    }

    fn integer(&mut self) -> Type {
        match self.random.below(12) {
            0 => scalar("signed char", Scalar::Integer(1), false),
            1 => scalar("unsigned short", Scalar::Integer(2), false),
            2 | 3 => scalar("int", Scalar::Integer(4), true),
            4 | 5 => scalar("unsigned long", Scalar::Integer(8), true),
            6 => scalar("_Bool", Scalar::Integer(1), false),
            7 => scalar("enum sort", Scalar::Integer(4), true),
            8 | 9 => scalar("void *", Scalar::Integer(8), true),
            // clang 14 aligns these to 8 bytes on the stack of x86-64, which its authors have
            // called a mistake (LLVM D86310).
            10 if !(self.dialect.clang && self.dialect.x86) => scalar("__int128", Scalar::Integer(16), true),
            _ => scalar("long long", Scalar::Integer(8), true),
        }
    }

    fn float(&mut self) -> Type {
        let long = if self.dialect.x86 {
            Scalar::X87(16)
        } else {
            Scalar::Float(16)
        };
        match self.random.below(8) {
            0..=2 => scalar("float", Scalar::Float(4), false),
            3..=5 => scalar("double", Scalar::Float(8), true),
            // clang 14 passes a struct of one in memory and miscounts registers after one, unlike
            // gcc.
            6 if self.dialect.x86 && !self.dialect.clang => scalar("__float128", Scalar::Float(16), true),
            6 if !self.dialect.clang && !self.dialect.x86 => scalar("_Float16", Scalar::Float(2), false),
            _ => scalar("long double", long, true),
        }
    }

    fn complex(&mut self) -> Type {
        let long = if self.dialect.x86 {
            Scalar::X87(16)
        } else {
            Scalar::Float(16)
        };
        let (c, part) = match self.random.below(4) {
            0 => ("_Complex float", Scalar::Float(4)),
            1 => ("_Complex double", Scalar::Float(8)),
            2 => ("_Complex long double", long),
            _ => ("_Complex int", Scalar::Integer(4)),
        };
        Type {
            c: c.to_owned(),
            shape: Shape::complex(part),
            booleans: Vec::new(),
            // gcc 12 and clang 14 differ in where a `_Complex float` of `...` lies.
            promoted: part != Scalar::Float(4),
        }
    }

    fn vector(&mut self, depth: u32) -> Type {
        let all = [8, 16, 32, 64];
        // clang 14 merges no more than two classes: unions and arrays with vectors that are longer
        // than 16 bytes it passes in registers where the document and gcc have them in memory.
        let narrow = depth > 0 && self.dialect.clang && self.dialect.x86;
        let longest = if narrow { 8 } else { self.dialect.vector };
        let allowed = all.iter().filter(|&&bytes| bytes <= longest).count();
        let bytes = all[self.random.below(allowed as u64) as usize];
        let of = ["char", "short", "int", "float"][self.random.below(4) as usize];
        let c = format!("v{bytes}{of}");
        scalar(&c, Scalar::Vector(bytes), bytes <= 16)
    }

    fn aggregate(&mut self, depth: u32) -> Type {
        // clang 14 passes of some unions of floats on x86-64 only what their first member has.
        let union = self.random.one_in(5);
        let of_integers = union && self.dialect.clang && self.dialect.x86;
        // Homogeneous aggregates have members of one type.
        let alike = self.random.one_in(3).then(|| match self.random.below(3) {
            0 => self.vector(depth + 1),
            1 => self.integer(),
            _ => self.float(),
        });
        let mut layout = Layout::new(union);
        let mut body = String::new();
        for number in 0..1 + self.random.below(4) {
            if !union && self.random.one_in(8) {
                let (c, bytes) = [("int", 4), ("unsigned char", 1), ("long", 8)][self.random.below(3) as usize];
                let bits = 1 + self.random.below(bytes * 8);
                body += &format!("{c} m{number} : {bits}; ");
                layout.bit_field(bytes, bits);
                continue;
            }
            let member = match &alike {
                _ if of_integers => self.integer(),
                Some(alike) => alike.clone(),
                None => self.any(depth + 1),
            };
            let count = if self.random.one_in(5) {
                1 + self.random.below(4)
            } else {
                1
            };
            match count {
                1 => body += &format!("{} m{number}; ", member.c),
                _ => body += &format!("{} m{number}[{count}]; ", member.c),
            }
            layout.member(&member, count);
        }
        let (word, name) = (if union { "union" } else { "struct" }, format!("A{}", self.count));
        self.count += 1;
        let bytes = layout.bytes.next_multiple_of(layout.align);
        self.definitions += &format!(
            "typedef {word} {{ {body}}} {name}; _Static_assert(sizeof({name}) == {bytes} && _Alignof({name}) == {}, \"\");\n",
            layout.align
        );
        Type {
            c: name,
            shape: Shape::aggregate(bytes, layout.align, layout.leaves),
            booleans: layout.booleans,
            promoted: layout.align <= 16,
        }
    }
}

/// Members of a struct or union, as they come.
struct Layout {
    union: bool,
    bytes: u64,
    align: u64,
    /// Where the next bit field would begin.
    bit: u64,
    leaves: Vec<Leaf>,
    booleans: Vec<u64>,
}

impl Layout {
    fn new(union: bool) -> Layout {
        Layout {
            union,
            bytes: 0,
            align: 1,
            bit: 0,
            leaves: Vec::new(),
            booleans: Vec::new(),
        }
    }

    fn member(&mut self, member: &Type, count: u64) {
        let shape = &member.shape;
        let start = if self.union {
            0
        } else {
            self.bit.div_ceil(8).next_multiple_of(shape.align)
        };
        for index in 0..count {
            let at = start + index * shape.bytes;
            self.leaves.extend(shape.leaves.iter().map(|leaf| Leaf {
                bit: leaf.bit + at * 8,
                ..*leaf
            }));
            self.booleans.extend(member.booleans.iter().map(|byte| byte + at));
        }
        self.end((start + count * shape.bytes) * 8, shape.align);
    }

    /// "Bit-fields": one never lies across a boundary of its type.
    fn bit_field(&mut self, bytes: u64, bits: u64) {
        let unit = bytes * 8;
        if self.bit / unit != (self.bit + bits - 1) / unit {
            self.bit = self.bit.next_multiple_of(unit);
        }
        self.leaves.push(Leaf {
            bit: self.bit,
            bits: Some(bits),
            scalar: Scalar::Integer(bytes),
        });
        self.end(self.bit + bits, bytes);
    }

    fn end(&mut self, bit: u64, align: u64) {
        self.bit = bit;
        self.align = self.align.max(align);
        self.bytes = self.bytes.max(bit.div_ceil(8));
    }
}

impl Type {
    /// Which bits of a value are not padding.
    pub(crate) fn mask(&self) -> Vec<u8> {
        let mut mask = vec![0; self.shape.bytes as usize];
        for leaf in &self.shape.leaves {
            let bits = leaf.bits.unwrap_or(match leaf.scalar {
                Scalar::X87(_) => 80,
                scalar => scalar.bytes() * 8,
            });
            for bit in leaf.bit..leaf.bit + bits {
                mask[(bit / 8) as usize] |= 1 << (bit % 8);
            }
        }
        if self.shape.form == Form::Aggregate && self.shape.leaves.is_empty() {
            // Too large to be taken apart: its first bytes are no padding.
            mask.iter_mut().take(1).for_each(|byte| *byte = 0xff);
        }
        mask
    }
}
