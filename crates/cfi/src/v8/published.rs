//! What programs that contain V8 export about it, for debuggers that read memory.

use std::collections::BTreeMap;

use crate::libraries::Found;
use crate::process_code::{ProcessCode, Region, number};

/// Bytes of the object before instructions.
pub(super) const LARGEST_HEADER: usize = 256;
/// Bytes of a function up to its name.
pub(super) const MOST_DATA: usize = 64;

/// What the names of all exported numbers begin with.
const PREFIX: &str = "v8dbg_";

/// Where the parts of V8's objects are, in bytes from an object's start, and the numbers of types.
/// Versions name the type of a field differently, and some fields are missing in some versions.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Published {
    /// In a map: the type of the objects that refer to it.
    pub(super) instance_type: u64,
    /// Bytes between an object with instructions and these.
    pub(super) header: u64,
    /// The type of such an object. Up to V8 10, it is that of `Code`.
    pub(super) stream: u64,
    /// The type of the object that describes instructions.
    pub(super) code: u64,
    /// In such an object: the number of bytes of instructions.
    pub(super) size: Option<u64>,
    /// The type of `SharedFunctionInfo`: a function of the source.
    pub(super) function: u64,
    /// The type of the objects that stand for one since V8 13.
    pub(super) wrapper: Option<u64>,
    /// In a function: its name, or the description of its scope.
    pub(super) name: u64,
    /// In a function: its script.
    pub(super) script_of: u64,
    /// The type of scopes.
    pub(super) scope: u64,
    /// In a scope, in words after the map: how many variables others may use, and what follows the
    /// part that all scopes have.
    pub(super) locals: u64,
    /// See `locals`.
    pub(super) variables: u64,
    /// The type of scripts.
    pub(super) script: u64,
    /// In a script: its path.
    pub(super) path: u64,
    /// In a script: its text.
    pub(super) source: u64,
    /// The types of arrays of references; what deoptimization needs is one of them.
    pub(super) arrays: [Option<u64>; 3],
    /// The type of arrays of weak references.
    pub(super) weak_array: u64,
    /// In an array: the number of its elements, and the first one.
    pub(super) array_length: u64,
    /// See `array_length`.
    pub(super) elements: u64,
    pub(super) strings: Strings,
}

/// How strings are stored.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Strings {
    pub(super) length: u64,
    /// Bits of the type: zero in those of strings; how the string is stored; whether its characters
    /// have one byte.
    pub(super) is_other: u64,
    pub(super) storage: u64,
    pub(super) is_one_byte: u64,
    /// Values of `storage`, and where each has its parts.
    pub(super) sequential: u64,
    pub(super) joined: u64,
    pub(super) part: u64,
    pub(super) external: u64,
    pub(super) thin: u64,
    pub(super) characters: u64,
    pub(super) first: u64,
    pub(super) second: u64,
    pub(super) resource: u64,
    pub(super) parent: u64,
    pub(super) offset: u64,
    pub(super) actual: u64,
}

/// The place of the file that contains V8, and what it exports.
pub(super) fn find<C: ProcessCode>(process: &C) -> Option<Found<C::Place, Published>> {
    let regions = process.regions();
    let mut files = regions
        .iter()
        .filter(|region| region.executable && region.path.starts_with('/'));
    // The program itself, under whatever name, is mostly the first; else it is a library.
    let program = files.next();
    let libraries = files.filter(|region| is_named_like_node(region));
    program.into_iter().chain(libraries).find_map(|region| {
        let address = region.range.start;
        let mapping = process.find(address)?;
        Some((
            address,
            process.place(mapping, address),
            Published::read(process, mapping)?,
        ))
    })
}

fn is_named_like_node(region: &Region) -> bool {
    region.path.rsplit('/').next().is_some_and(|file| file.contains("node"))
}

impl Published {
    fn read<C: ProcessCode>(process: &C, mapping: C::Mapping) -> Option<Published> {
        let objects = process.objects(mapping, PREFIX).into_iter();
        let objects = objects.filter_map(|(name, at)| Some((name.strip_prefix(PREFIX)?.to_owned(), at)));
        let objects: BTreeMap<String, u64> = objects.collect();
        // Masks may be negative numbers. Versions end the names of fields with other types.
        let get = |names: &[&str]| {
            names.iter().find_map(|name| {
                let (found, at) = objects.range((*name).to_owned()..).next()?;
                let fits = found == name || name.ends_with("__") && found.starts_with(name);
                number(process, *at, 4).filter(|_| fits)
            })
        };
        let instance_type = get(&["class_Map__instance_type__"])?;
        let code = get(&["type_Code__CODE_TYPE"])?;
        let published = Published {
            instance_type,
            code,
            stream: get(&["type_InstructionStream__INSTRUCTION_STREAM_TYPE"]).unwrap_or(code),
            header: get(&[
                "class_InstructionStream__instruction_start__",
                "class_Code__instruction_start__",
            ])?,
            size: get(&["class_Code__instruction_size__"]),
            function: get(&["type_SharedFunctionInfo__SHARED_FUNCTION_INFO_TYPE"])?,
            wrapper: get(&["type_SharedFunctionInfoWrapper__SHARED_FUNCTION_INFO_WRAPPER_TYPE"]),
            name: get(&["class_SharedFunctionInfo__name_or_scope_info__"])?,
            script_of: get(&[
                "class_SharedFunctionInfo__script__",
                "class_SharedFunctionInfo__script_or_debug_info__",
            ])?,
            scope: get(&["type_ScopeInfo__SCOPE_INFO_TYPE"])?,
            locals: get(&["scopeinfo_idx_ncontextlocals"])?,
            variables: get(&["scopeinfo_idx_first_vars"])?,
            script: get(&["type_Script__SCRIPT_TYPE"])?,
            path: get(&["class_Script__name__"])?,
            source: get(&["class_Script__source__"])?,
            arrays: [
                get(&["type_FixedArray__FIXED_ARRAY_TYPE"]),
                get(&["type_TrustedFixedArray__TRUSTED_FIXED_ARRAY_TYPE"]),
                get(&["type_ProtectedFixedArray__PROTECTED_FIXED_ARRAY_TYPE"]),
            ],
            weak_array: get(&["type_WeakFixedArray__WEAK_FIXED_ARRAY_TYPE"])?,
            array_length: get(&["class_FixedArrayBase__length__"])?,
            elements: get(&["class_FixedArray__data__"])?,
            strings: Strings {
                length: get(&["class_String__length__"])?,
                is_other: get(&["IsNotStringMask"])?,
                storage: get(&["StringRepresentationMask"])?,
                is_one_byte: get(&["OneByteStringTag"])?,
                sequential: get(&["SeqStringTag"])?,
                joined: get(&["ConsStringTag"])?,
                part: get(&["SlicedStringTag"])?,
                external: get(&["ExternalStringTag"])?,
                thin: get(&["ThinStringTag"])?,
                characters: get(&["class_SeqOneByteString__chars__"])?,
                first: get(&["class_ConsString__first__"])?,
                second: get(&["class_ConsString__second__"])?,
                resource: get(&["class_ExternalString__resource__"])?,
                parent: get(&["class_SlicedString__parent__"])?,
                offset: get(&["class_SlicedString__offset__"])?,
                actual: get(&["class_ThinString__actual__"])?,
            },
        };
        // Other programs may export such names, too: what is read step by step has bounds.
        let is_bounded = published.header <= LARGEST_HEADER as u64 && published.name <= MOST_DATA as u64;
        is_bounded.then_some(published)
    }
}
