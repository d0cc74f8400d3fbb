//! Types as calling conventions see them: sizes, alignments, and the scalars in aggregates.

use backtrail_ctype::graph::{Body, Graph, Node};
use backtrail_ctype::{Kind, StructMember, TypeId};

/// The largest aggregate whose scalars matter: eight eightbytes, or four members of 16 bytes.
pub const LARGEST: u64 = 64;
/// As many bit fields of one bit as fit into one, in each member of a union.
const MOST_LEAVES: usize = 1024;
/// Maximum nesting of typedefs, qualifiers, members and arrays.
const DEEPEST: u32 = 64;
/// Maximum number of types visited for a shape; a type that is a member twice is visited twice.
const MOST_VISITS: u32 = 1 << 16;

/// A scalar, and its size in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scalar {
    /// An integer, a pointer, an enum, a boolean.
    Integer(u64),
    /// A float of IEEE 754, binary or decimal.
    Float(u64),
    /// The 80-bit float of x87, with its padding.
    X87(u64),
    /// A short vector.
    Vector(u64),
}

impl Scalar {
    /// Its size in bytes, which is also its alignment.
    pub fn bytes(self) -> u64 {
        match self {
            Scalar::Integer(bytes) | Scalar::Float(bytes) | Scalar::X87(bytes) | Scalar::Vector(bytes) => bytes,
        }
    }
}

/// The format of a float of 16 bytes on a CPU with x87.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WideFloat {
    /// 80 bits and padding.
    X87,
    /// IEEE 754's binary128.
    Binary128,
}

impl WideFloat {
    /// The format of a type with this name, or of the parts of a complex number; `None` for a name
    /// that does not say it, such as clang's `complex`.
    pub fn of(name: &[u8]) -> Option<WideFloat> {
        let prefixes = [&b"complex "[..], b"_Complex "];
        let part = prefixes.iter().find_map(|prefix| name.strip_prefix(*prefix));
        match part.unwrap_or(name) {
            b"long double" | b"_Float64x" | b"__float80" | b"real(kind=10)" | b"complex(kind=10)" => {
                Some(WideFloat::X87)
            }
            b"_Float128" | b"__float128" | b"f128" | b"real(kind=16)" | b"complex(kind=16)" => {
                Some(WideFloat::Binary128)
            }
            _ => None,
        }
    }
}

/// A scalar in an aggregate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leaf {
    /// Its first bit.
    pub bit: u64,
    /// Its width in bits, if it is a bit field.
    pub bits: Option<u64>,
    /// Its type; for a bit field, the declared type.
    pub scalar: Scalar,
}

/// The form of a type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// A scalar: one leaf.
    Scalar,
    /// A complex number: two leaves.
    Complex,
    /// A struct or a union.
    Aggregate,
}

/// A type's size, alignment and scalars.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Its form.
    pub form: Form,
    /// Its size in bytes.
    pub bytes: u64,
    /// Its alignment in bytes.
    pub align: u64,
    /// Its scalars; empty if it is larger than [`LARGEST`].
    pub leaves: Vec<Leaf>,
}

/// The properties that sizes of types depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataModel {
    /// Size of a pointer in bytes.
    pub pointer: u64,
    /// Whether `long double` is the format of x87.
    pub x87: bool,
}

impl Shape {
    /// The shape of a scalar.
    pub fn scalar(scalar: Scalar) -> Shape {
        let leaf = Leaf {
            bit: 0,
            bits: None,
            scalar,
        };
        Shape {
            form: Form::Scalar,
            bytes: scalar.bytes(),
            align: scalar.bytes().max(1),
            leaves: vec![leaf],
        }
    }

    /// The shape of a complex number of two such scalars.
    pub fn complex(part: Scalar) -> Shape {
        let leaf = |index| Leaf {
            bit: index * part.bytes() * 8,
            bits: None,
            scalar: part,
        };
        Shape {
            form: Form::Complex,
            bytes: part.bytes() * 2,
            align: part.bytes().max(1),
            leaves: vec![leaf(0), leaf(1)],
        }
    }

    /// The shape of an aggregate with these scalars.
    pub fn aggregate(bytes: u64, align: u64, leaves: Vec<Leaf>) -> Shape {
        Shape {
            form: Form::Aggregate,
            bytes,
            align,
            leaves: if bytes <= LARGEST { leaves } else { Vec::new() },
        }
    }

    /// The shape of a graph's type; `None` if the graph does not describe it fully: declarations,
    /// types that the format can't represent, damage.
    pub fn of(graph: &Graph<'_>, id: TypeId, model: DataModel) -> Option<Shape> {
        let (_, node) = resolve(graph, id)?;
        match node.body {
            Body::Aggregate(_, bytes, members) => {
                let mut walk = Walk {
                    graph,
                    model,
                    wanted: bytes <= LARGEST,
                    align: 1,
                    leaves: Vec::new(),
                    visits: 0,
                };
                walk.members(graph.members(members), 0, 0)?;
                let leaves = walk.leaves;
                Some(Shape::aggregate(bytes, walk.align, leaves))
            }
            // `void` cannot be passed.
            _ => match scalar(node, model)? {
                (_, scalar) if scalar.bytes() == 0 => None,
                (1, scalar) => Some(Shape::scalar(scalar)),
                (_, part) => Some(Shape::complex(part)),
            },
        }
    }
}

/// Resolves typedefs and qualifiers.
pub fn resolve<'g, 'a>(graph: &'g Graph<'a>, mut id: TypeId) -> Option<(TypeId, &'g Node<'a>)> {
    for _ in 0..DEEPEST {
        let node = graph.get(id)?;
        match node.body {
            Body::Reference(Kind::Pointer, _) => return Some((id, node)),
            Body::Reference(_, to) => id = to,
            _ => return Some((id, node)),
        }
    }
    None
}

/// The number of scalars (a complex number has two), and their kind.
fn scalar(node: &Node<'_>, model: DataModel) -> Option<(u64, Scalar)> {
    let float = |bytes| match (model.x87, bytes) {
        // The encoding does not distinguish the two formats of this size.
        (true, 12 | 16) => match WideFloat::of(node.name)? {
            WideFloat::X87 => Some(Scalar::X87(bytes)),
            WideFloat::Binary128 => Some(Scalar::Float(bytes)),
        },
        _ => Some(Scalar::Float(bytes)),
    };
    Some(match node.body {
        Body::Reference(Kind::Pointer, _) => (1, Scalar::Integer(model.pointer)),
        Body::Enum(bytes, _) => (1, Scalar::Integer(bytes)),
        Body::Number(Kind::Integer, bytes, _) => (1, Scalar::Integer(bytes)),
        // CTF_FP_CPLX, CTF_FP_DCPLX, CTF_FP_LDCPLX.
        Body::Number(Kind::Float, bytes, encoding) if (3..=5).contains(&encoding.format) => (2, float(bytes / 2)?),
        Body::Number(Kind::Float, bytes, _) => (1, float(bytes)?),
        _ => return None,
    })
}

struct Walk<'g, 'a> {
    graph: &'g Graph<'a>,
    model: DataModel,
    wanted: bool,
    align: u64,
    leaves: Vec<Leaf>,
    visits: u32,
}

impl Walk<'_, '_> {
    fn members(&mut self, members: &[StructMember<'_>], bit: u64, depth: u32) -> Option<()> {
        for member in members {
            self.any(member.id, bit.checked_add(member.offset)?, depth + 1)?;
        }
        Some(())
    }

    fn any(&mut self, id: TypeId, bit: u64, depth: u32) -> Option<()> {
        self.visits += 1;
        if depth > DEEPEST || self.visits > MOST_VISITS {
            return None;
        }
        let graph = self.graph;
        let (_, node) = resolve(graph, id)?;
        match node.body {
            Body::Aggregate(_, _, members) => self.members(graph.members(members), bit, depth),
            Body::Array(array) => {
                let before = self.leaves.len();
                self.any(array.contents, bit, depth + 1)?;
                // A flexible array has an alignment but no elements.
                if array.count == 0 {
                    self.leaves.truncate(before);
                    return Some(());
                }
                if self.leaves.len() == before {
                    return Some(());
                }
                let bits = self
                    .bytes_of(array.contents, depth + 1)?
                    .checked_mul(8)
                    .filter(|&bits| bits > 0)?;
                for index in 1..u64::from(array.count) {
                    self.any(array.contents, bit.checked_add(bits.checked_mul(index)?)?, depth + 1)?;
                }
                Some(())
            }
            Body::Slice(_, slice) => {
                let (_, of) = resolve(graph, slice.of)?;
                let (_, scalar) = scalar(of, self.model)?;
                self.leaf(bit.checked_add(slice.offset.into())?, Some(slice.bits.into()), scalar)
            }
            _ => {
                let (count, scalar) = scalar(node, self.model)?;
                for index in 0..count {
                    self.leaf(bit.checked_add(index * scalar.bytes().checked_mul(8)?)?, None, scalar)?;
                }
                Some(())
            }
        }
    }

    fn leaf(&mut self, bit: u64, bits: Option<u64>, scalar: Scalar) -> Option<()> {
        // Packed members have no alignment of their own.
        let bytes = scalar.bytes();
        if bytes.is_power_of_two() && (bits.is_some() || bit.is_multiple_of(bytes.checked_mul(8)?)) {
            self.align = self.align.max(bytes);
        }
        if !self.wanted {
            return Some(());
        }
        if self.leaves.len() == MOST_LEAVES {
            return None;
        }
        self.leaves.push(Leaf { bit, bits, scalar });
        Some(())
    }

    fn bytes_of(&self, id: TypeId, depth: u32) -> Option<u64> {
        if depth > DEEPEST {
            return None;
        }
        let (_, node) = resolve(self.graph, id)?;
        match node.body {
            Body::Aggregate(_, bytes, _) => Some(bytes),
            Body::Array(array) => self
                .bytes_of(array.contents, depth + 1)?
                .checked_mul(u64::from(array.count)),
            _ => {
                let (count, scalar) = scalar(node, self.model)?;
                scalar.bytes().checked_mul(count)
            }
        }
    }
}
