//! Text to work on: the same for the same seed, and about as compressible as prose.

/// A xorshift generator: the same numbers everywhere.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// A generator for a seed.
    pub fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// The next number.
    pub fn number(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// The next number below `limit`; 0 where that is 0.
    pub fn below(&mut self, limit: usize) -> usize {
        (self.number() % limit.max(1) as u64) as usize
    }

    /// Flips, overwrites, inserts, removes or cuts bytes.
    pub fn mutate(&mut self, data: &mut Vec<u8>) {
        for _ in 0..=self.below(4) {
            let at = self.below(data.len() + 1);
            match self.below(5) {
                0 if at < data.len() => data[at] ^= 1 << self.below(8),
                1 if at < data.len() => data[at] = self.number() as u8,
                2 => data.insert(at, self.number() as u8),
                3 if at < data.len() => drop(data.remove(at)),
                4 if self.below(4) == 0 => data.truncate(at),
                _ => {}
            }
        }
    }
}

/// Lines of made-up words, `bytes` long or a line longer.
pub fn lines(seed: u64, bytes: usize) -> String {
    let mut random = Random::new(seed);
    let words: Vec<String> = (0..2000).map(|_| word(&mut random)).collect();
    let mut text = String::with_capacity(bytes + 200);
    while text.len() < bytes {
        for _ in 0..5 + random.below(8) {
            // The product makes some words frequent and most rare, as in prose.
            let choice = random.below(words.len()) * random.below(words.len()) / words.len();
            text.push_str(&words[choice]);
            text.push(' ');
        }
        text.pop();
        text.push('\n');
    }
    text
}

fn word(random: &mut Random) -> String {
    (0..2 + random.below(9))
        .map(|_| char::from(b'a' + random.below(26) as u8))
        .collect()
}
