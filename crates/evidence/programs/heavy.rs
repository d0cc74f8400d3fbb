// Something for rustc to do: generics, traits, closures, iterators.
use std::collections::{BTreeMap, HashMap};
use std::fmt::{Debug, Display};
macro_rules! many { ($($name:ident)*) => { $(
pub mod $name {
    use super::*;
    #[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
    pub enum Kind<T> { One(T), Two(T, T), Many(Vec<Kind<T>>) }
    impl<T: Clone + Debug + Display> Kind<T> {
    }
    pub fn run(n: usize) -> String {
        let mut map: HashMap<String, BTreeMap<usize, Vec<String>>> = HashMap::new();
        for i in 0..n { map.entry(format!("{i}")).or_default().entry(i % 7).or_default().push(format!("{i:?}")); }
        let mut all: Vec<_> = map.iter().flat_map(|(k, v)| v.iter().map(move |(a, b)| (k.clone(), *a, b.join(",")))).collect();
        all.sort_by(|a, b| a.1.cmp(&b.1).then(b.0.cmp(&a.0)));
        all.iter().map(|(a, b, c)| format!("{a}{b}{c}")).filter(|s| s.len() > 2).collect::<Vec<_>>().concat()
    }
} )* pub fn all() -> usize { let mut n = 0; $( n += $name::run(10).len(); )* n } } }
many!(a0 a1 a2 a3 a4 a5 a6 a7 a8 a9 b0 b1 b2 b3 b4 b5 b6 b7 b8 b9);
fn main() { println!("{}", all()); }
