//! Symbol names as their programmers wrote them.

use std::borrow::Cow;
use std::fmt::{self, Write as _};

use crate::dlang;

/// Longest name that is shown, in bytes. Template arguments can repeat themselves exponentially;
/// nobody reads names near this long. A truncated name ends in `…`.
pub const MAX_NAME_LENGTH: usize = 8 << 10;

/// How many beginnings of a name are tried, and the longest one: each is parsed from the start.
const MOST_BEGINNINGS: usize = 64;
const LONGEST_BEGINNING: usize = 1 << 10;

/// The name without mangling: Rust (legacy without its hash, and v0), C++ (Itanium ABI, with
/// parameters, without the return type that only templates have) and D (with parameters). Other
/// names stay as they are, and so do suffixes of clones such as `.constprop.0` and `.cold`.
pub fn demangle(name: &str) -> Cow<'_, str> {
    demangle_rust(name)
        .or_else(|| demangle_cpp(name).map(without_empty_packs))
        .or_else(|| dlang::demangle(name, MAX_NAME_LENGTH).map(|name| cut(&name).into_owned()))
        .map(Cow::Owned)
        .unwrap_or_else(|| cut(name))
}

fn demangle_rust(name: &str) -> Option<String> {
    let demangled = rustc_demangle::try_demangle(name).ok()?;
    // The alternate form leaves out hashes, which differ from build to build.
    Bounded::write(|out| write!(out, "{demangled:#}"))
}

fn demangle_cpp(name: &str) -> Option<String> {
    // Everything else would only cost time: the demangler has no quicker check of its own.
    if !name.starts_with("_Z") && !name.starts_with("__Z") && !name.starts_with("_GLOBAL_") {
        return None;
    }
    let options = cpp_demangle::DemangleOptions::new().no_return_type();
    if let Some((kind, target)) = thunk(name) {
        return Some(format!("{kind} to {}", demangle_cpp(&target)?));
    }
    match cpp_demangle::Symbol::new(name.as_bytes()) {
        Ok(symbol) => {
            let shown = Bounded::write(|out| symbol.structured_demangle(out, &options))?;
            if let Some(data) = data_of_class(&shown) {
                return Some(data);
            }
            if has_parameters(&shown) {
                return Some(constructor(name, &shown).unwrap_or(shown));
            }
            let bare = Bounded::write(|out| symbol.structured_demangle(out, &options.no_params()))?;
            Some(with_parameters(&bare, &shown))
        }
        Err(_) => demangle_beginning(name, &options.no_params()),
    }
}

/// Without the comma before an empty parameter pack that ends a list, and without what its types
/// would have had in common. `c++filt` leaves both out, too.
fn without_empty_packs(mut name: String) -> String {
    const ENDS: [&str; 5] = [", >", ", )", ", &)", ", &&)", ", const&)"];
    while let Some((at, end)) = ENDS.iter().find_map(|end| Some((name.find(end)?, end))) {
        name.replace_range(at..at + end.len() - 1, "");
    }
    name
}

/// What kind of thunk this is, and the mangled function that it calls. `c++filt` shows them so; the
/// demangler shows them as `{virtual override thunk({offset(-16)}, f())}`.
fn thunk(name: &str) -> Option<(&'static str, String)> {
    let offset = name.strip_prefix("_ZT")?;
    let (kind, function) = match offset.as_bytes().first()? {
        b'h' => ("non-virtual thunk", after_call_offset(offset)?),
        b'v' => ("virtual thunk", after_call_offset(offset)?),
        b'c' => (
            "covariant return thunk",
            after_call_offset(after_call_offset(&offset[1..])?)?,
        ),
        _ => return None,
    };
    // A thunk is never one to another special name: names could nest without end.
    (!function.starts_with('T')).then(|| (kind, format!("_Z{function}")))
}

/// What follows a `<call-offset>` of the Itanium ABI: `h` and a number, or `v` and two.
fn after_call_offset(name: &str) -> Option<&str> {
    let after_number = |name: &'_ str| -> Option<usize> {
        let digits = name.strip_prefix('n').unwrap_or(name);
        let end = digits
            .find(|digit: char| !digit.is_ascii_digit())
            .filter(|end| *end > 0)?;
        digits[end..]
            .starts_with('_')
            .then_some(name.len() - digits.len() + end + 1)
    };
    let (numbers, rest) = match name.as_bytes().first()? {
        b'h' => (1, &name[1..]),
        b'v' => (2, &name[1..]),
        _ => return None,
    };
    (0..numbers).try_fold(rest, |rest, _| rest.get(after_number(rest)?..))
}

/// Data that compilers make for a class, as `c++filt` shows it; the demangler shows it as
/// `{vtable(A)}`.
fn data_of_class(shown: &str) -> Option<String> {
    let class = |begin: &str| shown.strip_prefix(begin)?.strip_suffix(")}");
    let vtable = || class("{vtable(").map(|class| format!("vtable for {class}"));
    vtable().or_else(|| class("{vtt(").map(|class| format!("VTT for {class}")))
}

/// The name of a constructor that is a template, with all its parameters. Mangled names of other
/// templates begin their types with that of the result, which the demangler leaves out. It leaves
/// out the first one here, too; so it gets one more.
fn constructor(name: &str, shown: &str) -> Option<String> {
    let function = &shown[..parameters_at(shown)?];
    if !is_constructor_template(function) {
        return None;
    }
    let options = cpp_demangle::DemangleOptions::new().no_return_type();
    let demangled = |name: &str| {
        let symbol = cpp_demangle::Symbol::new(name.as_bytes()).ok()?;
        Bounded::write(|out| symbol.structured_demangle(out, &options))
    };
    // The shortest such name without parameters: what the first one would be is left out.
    let alone = format!("{function}()");
    let is_function = |(name, _): &(&str, &str)| demangled(&format!("{name}v")).as_ref() == Some(&alone);
    let (beginning, parameters) = beginnings(name).filter(is_function).last()?;
    demangled(&format!("{beginning}v{parameters}"))
}

/// Where the list of a function's parameters begins.
fn parameters_at(shown: &str) -> Option<usize> {
    opening(&shown[..end_of_name(shown)], ['(', ')'])
}

/// Where the bracket opens that the text ends with, or the last one that is closed again.
fn opening(text: &str, brackets: [char; 2]) -> Option<usize> {
    let mut open = 0;
    text.rmatch_indices(brackets).find_map(|(at, bracket)| {
        open += if bracket.starts_with(brackets[1]) { 1 } else { -1 };
        (open == 0).then_some(at)
    })
}

/// Whether this is a class and a constructor with template arguments, as in `a::B::B<int>` and
/// `a::B<int>::B<char>`.
fn is_constructor_template(name: &str) -> bool {
    let parts = without_arguments(name).and_then(|name| name.rsplit_once("::"));
    parts.is_some_and(|(class, function)| {
        let class = without_arguments(class).unwrap_or(class);
        class.rsplit("::").next() == Some(function)
    })
}

/// The name without the template arguments at its end.
fn without_arguments(name: &str) -> Option<&str> {
    let at = opening(name, ['<', '>']).filter(|_| name.ends_with('>'))?;
    name.get(..at)
}

/// How the demangler begins the suffix of a clone.
const CLONE: &str = " [clone ";

/// Whether this is the name of a function with its parameters.
fn has_parameters(shown: &str) -> bool {
    let name = &shown[..end_of_name(shown)];
    name.ends_with(')') && !name.ends_with("operator()")
}

/// Where the qualifiers of a member function and the suffixes of clones begin.
fn end_of_name(shown: &str) -> usize {
    let mut name = shown.split(CLONE).next().unwrap_or_default();
    let qualifiers = [" const", " volatile", " &&", " &"];
    while let Some(rest) = qualifiers.iter().find_map(|qualifier| name.strip_suffix(qualifier)) {
        name = rest;
    }
    name.len()
}

/// The function's name with its parameters. If a parameter of a closure is a nested name, such as
/// `a::b`, the demangler writes those of the closure's function after that name. `bare` is the name
/// without them.
fn with_parameters(bare: &str, shown: &str) -> String {
    let (name, clones) = shown.split_at(shown.find(CLONE).unwrap_or(shown.len()));
    if bare == name || shown.ends_with('…') {
        return shown.to_owned();
    }
    let same = bare.bytes().zip(name.bytes()).take_while(|(bare, shown)| bare == shown);
    let at = bare.floor_char_boundary(same.count());
    let inserted = name
        .len()
        .checked_sub(bare.len())
        .and_then(|len| name.get(at..at + len));
    let parameters = inserted.filter(|inserted| {
        let is_list = inserted.starts_with('(') && inserted.ends_with(')');
        is_list && name.get(at + inserted.len()..) == bare.get(at..)
    });
    let (start, qualifiers) = bare.split_at(end_of_name(bare));
    format!("{start}{}{qualifiers}{clones}", parameters.unwrap_or_default())
}

/// The function's name and its template arguments. The demangler does not know all that gcc has in
/// the types of parameters and results, such as the one of `std::swap`.
fn demangle_beginning(name: &str, options: &cpp_demangle::DemangleOptions) -> Option<String> {
    let symbol = beginnings(name).find_map(|(beginning, _)| cpp_demangle::Symbol::new(beginning.as_bytes()).ok())?;
    Bounded::write(|out| symbol.structured_demangle(out, options))
}

/// The mangled name divided where a name may end, the longest beginnings first.
fn beginnings(name: &str) -> impl Iterator<Item = (&str, &str)> {
    let ends = name.match_indices('E').map(|(at, _)| at + 1).rev();
    let divided = ends.filter_map(|end| name.split_at_checked(end)).take(MOST_BEGINNINGS);
    divided.filter(|(beginning, _)| beginning.len() <= LONGEST_BEGINNING)
}

fn cut(name: &str) -> Cow<'_, str> {
    if name.len() <= MAX_NAME_LENGTH {
        return Cow::Borrowed(name);
    }
    let mut out = Bounded::default();
    // The failure is the cut itself.
    let _ = out.write_str(name);
    Cow::Owned(out.finish())
}

/// A text that stops its writer when it is long enough.
#[derive(Default)]
struct Bounded {
    text: String,
    full: bool,
}

impl Bounded {
    /// The text that `write` produces; `None` if it fails for another reason than length, or writes
    /// nothing.
    fn write(write: impl FnOnce(&mut Bounded) -> fmt::Result) -> Option<String> {
        let mut out = Bounded::default();
        let result = write(&mut out);
        if (result.is_err() && !out.full) || out.text.is_empty() {
            return None;
        }
        Some(out.finish())
    }

    fn finish(mut self) -> String {
        if self.full {
            self.text.push('…');
        }
        self.text
    }
}

impl fmt::Write for Bounded {
    fn write_str(&mut self, part: &str) -> fmt::Result {
        let room = MAX_NAME_LENGTH - self.text.len();
        if part.len() <= room {
            self.text.push_str(part);
            return Ok(());
        }
        self.text.push_str(&part[..part.floor_char_boundary(room)]);
        self.full = true;
        Err(fmt::Error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rust_names_lose_their_hashes() {
        assert_eq!(
            demangle("_ZN4core3fmt9Formatter3pad17h0123456789abcdefE"),
            "core::fmt::Formatter::pad"
        );
        assert_eq!(
            demangle(
                "_ZN71_$LT$Test$u20$$u2b$$u20$$u27$static$u20$as$u20$foo..Bar$LT$Test$GT$$GT$3bar17h930b740aa94f1d3aE"
            ),
            "<Test + 'static as foo::Bar<Test>>::bar"
        );
        assert_eq!(demangle("_RNvCskwGfYPst2Cb_3foo3bar"), "foo::bar");
        assert_eq!(demangle("_RINvNtC3std3mem8align_ofdE"), "std::mem::align_of::<f64>");
    }

    #[test]
    fn cpp_names_keep_their_parameters() {
        assert_eq!(demangle("_Z3fooi"), "foo(int)");
        assert_eq!(
            demangle("_ZNSt6vectorIiSaIiEE9push_backERKi"),
            "std::vector<int, std::allocator<int> >::push_back(int const&)"
        );
        assert_eq!(demangle("_Z3addIiET_S0_S0_"), "add<int>(int, int)");
        assert_eq!(demangle("_ZN1A3runEv"), "A::run()");
    }

    /// As `c++filt` has them, without the types of results.
    #[test]
    fn constructors_that_are_templates_have_their_first_parameter() {
        for (name, shown) in [
            (
                "_ZN7mozilla3gfx12RecordedFillC2INS0_11EventStreamEEERT_",
                "mozilla::gfx::RecordedFill::RecordedFill<mozilla::gfx::EventStream>(mozilla::gfx::EventStream&)",
            ),
            ("_ZN1AIiEC1IcEET_S0_i", "A<int>::A<char>(char, A<int>, int)"),
            ("_ZN1A1BIiEET_S1_", "A::B<int>(int)"),
            ("_ZN1AC2Ei", "A::A(int)"),
            ("_ZZ1fIiEvT_EN1BC2IcEES0_", "f<int>(int)::B::B<char>(char)"),
        ] {
            assert_eq!(demangle(name), shown);
        }
    }

    #[test]
    fn data_of_classes() {
        assert_eq!(demangle("_ZTV1A"), "vtable for A");
        assert_eq!(demangle("_ZTT1AIiE"), "VTT for A<int>");
        assert_eq!(demangle("_ZTI1A"), "typeinfo for A");
    }

    #[test]
    fn empty_parameter_packs_leave_no_comma() {
        for (name, shown) in [
            ("_Z1fI1TIiJEEEvT_", "f<T<int> >(T<int>)"),
            ("_Z1gIiJEEvT_DpT0_", "g<int>(int)"),
            ("_ZN1TIiJEE3runIJEEEvv", "T<int>::run<>()"),
            (
                "_ZSt13__invoke_implIvRFvvEJEET_St14__invoke_otherOT0_DpOT1_",
                "std::__invoke_impl<void, void (&)()>(std::__invoke_other, void (&)())",
            ),
        ] {
            assert_eq!(demangle(name), shown);
        }
    }

    #[test]
    fn cpp_names_with_types_that_the_demangler_does_not_know() {
        assert_eq!(
            demangle(
                "_ZSt4swapIjENSt9enable_ifIXsrSt6__and_IJSt6__not_ISt15__is_tuple_likeIT_EESt21is_move_constructibleIS4_\
                 ESt18is_move_assignableIS4_EEE5valueEvE4typeERS4_SE_"
            ),
            "std::swap<unsigned int>"
        );
        assert_eq!(
            demangle("_ZN1a1bIiE3putINS_1cEEENSt9enable_ifIXsrSt6__and_IJT_EE5valueEvE4typeES4_"),
            "a::b<int>::put<a::c>"
        );
    }

    /// As `c++filt` shows them.
    #[test]
    fn closures_that_take_nested_types_keep_their_parameters() {
        for (name, shown) in [
            (
                "_ZZ1fvENKUliN1A1BEE_clEiS0_",
                "f()::{lambda(int, A::B)#1}::operator()(int, A::B) const",
            ),
            (
                "_ZZ1fiENKUlN1A1BEiE_clES0_i",
                "f(int)::{lambda(A::B, int)#1}::operator()(A::B, int) const",
            ),
            (
                "_ZZ1fN1A1BEENKUlS0_E_clES0_",
                "f(A::B)::{lambda(A::B)#1}::operator()(A::B) const",
            ),
            (
                "_ZZN1A1fERNS_1BEENKUlNS_1CEE_clES1_.isra.0",
                "A::f(A::B&)::{lambda(A::C)#1}::operator()(A::B&) const [clone .isra.0]",
            ),
            ("_ZZ1fvENUlN1A1BEE_4_FUNES0_", "f()::{lambda(A::B)#1}::_FUN(A::B)"),
            ("_ZZ1fvENKUliE_clEi", "f()::{lambda(int)#1}::operator()(int) const"),
            ("_ZNKR1AclEv", "A::operator()() const &"),
            ("_ZN1A3barE", "A::bar"),
            ("_ZZ1fvE3foo_0", "f()::foo"),
        ] {
            assert_eq!(demangle(name), shown);
        }
    }

    #[test]
    fn thunks_do_not_nest_without_end() {
        let name = format!("_Z{}N1A1fEv", "Th0_".repeat(1 << 18));
        assert!(!demangle(&name).is_empty());
    }

    /// As `c++filt` shows them.
    #[test]
    fn thunks_are_named_after_their_functions() {
        for (name, shown) in [
            ("_ZThn16_N1A1fEv", "non-virtual thunk to A::f()"),
            ("_ZTv0_n24_N1A1fEi", "virtual thunk to A::f(int)"),
            ("_ZTchn16_h24_N1A1fEv", "covariant return thunk to A::f()"),
            ("_ZTch0_v0_n32_N1A1fEv", "covariant return thunk to A::f()"),
            ("_ZThn16_N1A1fEv.cold", "non-virtual thunk to A::f() [clone .cold]"),
            ("_ZThx_N1A1fEv", "_ZThx_N1A1fEv"),
        ] {
            assert_eq!(demangle(name), shown);
        }
    }

    #[test]
    fn clones_stay_recognisable() {
        assert_eq!(demangle("deflate_slow.constprop.0"), "deflate_slow.constprop.0");
        assert_eq!(demangle("main.cold"), "main.cold");
        assert_eq!(demangle("_Z3foov.constprop.0"), "foo() [clone .constprop.0]");
        assert_eq!(demangle("_Z3foov.cold"), "foo() [clone .cold]");
        assert_eq!(
            demangle("_ZN4core3fmt9Formatter3pad17h0123456789abcdefE.cold"),
            "core::fmt::Formatter::pad.cold"
        );
    }

    #[test]
    fn other_names_stay_as_they_are() {
        for name in [
            "main",
            "_start",
            "__libc_start_main",
            "_Z",
            "_ZN",
            "_R",
            "_Zfoo",
            "",
            "näme",
            "_GLOBAL_OFFSET_TABLE_",
        ] {
            assert_eq!(demangle(name), name);
        }
    }

    #[test]
    fn no_name_is_endless() {
        let long = "ä".repeat(MAX_NAME_LENGTH);
        let shown = demangle(&long);
        assert!(shown.len() <= MAX_NAME_LENGTH + '…'.len_utf8() && shown.ends_with('…'));

        // Each substitution doubles the one before.
        let mut doubling = String::from("_Z1fSt4pairIiiE");
        for substitution in [
            "S_", "S0_", "S1_", "S2_", "S3_", "S4_", "S5_", "S6_", "S7_", "S8_", "S9_", "SA_", "SB_", "SC_", "SD_",
        ] {
            doubling.push_str(&format!("St4pairI{substitution}{substitution}E"));
        }
        assert!(demangle(&doubling).len() <= MAX_NAME_LENGTH + '…'.len_utf8());
    }

    #[test]
    fn mutated_names_never_panic() {
        let seeds = [
            "_ZNSt6vectorIiSaIiEE9push_backERKi",
            "_RINvNtC3std3mem8align_ofdE",
            "_ZN71_$LT$Test$u20$as$u20$foo..Bar$GT$3bar17h930b740aa94f1d3aE.cold",
        ];
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let mut next = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state
        };
        for _ in 0..20_000 {
            let mut bytes = seeds[next() as usize % seeds.len()].as_bytes().to_vec();
            for _ in 0..1 + next() % 4 {
                let at = next() as usize % bytes.len();
                bytes[at] = b'!' + (next() % 94) as u8;
            }
            let name = String::from_utf8(bytes).unwrap();
            assert!(demangle(&name).len() <= MAX_NAME_LENGTH + '…'.len_utf8());
        }
    }
}
