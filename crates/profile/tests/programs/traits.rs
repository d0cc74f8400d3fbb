use std::collections::BTreeMap;

trait Shape {
    fn area(&self) -> f64;
}

struct Square(f64);
struct Circle(f64);

impl Shape for Square {
    fn area(&self) -> f64 {
        self.0 * self.0
    }
}

impl Shape for Circle {
    #[inline(never)]
    fn area(&self) -> f64 {
        self.0 * self.0 * std::f64::consts::PI
    }
}

#[inline(never)]
fn sum(shapes: &[Box<dyn Shape>]) -> f64 {
    shapes.iter().map(|shape| shape.area()).filter(|area| *area > 1.0).sum()
}

#[inline(never)]
fn words(text: &str) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for word in text.split_whitespace() {
        *counts.entry(word.to_lowercase()).or_default() += 1;
    }
    counts
}

fn main() {
    let shapes: Vec<Box<dyn Shape>> = (0..100)
        .map(|i| match i % 2 {
            0 => Box::new(Square(i as f64)) as Box<dyn Shape>,
            _ => Box::new(Circle(i as f64)),
        })
        .collect();
    println!("{} {:?}", sum(&shapes), words("a B b a"));
}
