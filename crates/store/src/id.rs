//! Ids: hashes of what they name, so that no two writers need to agree on a counter.

/// Hashes the parts of a thing in order.
#[derive(Debug)]
pub(crate) struct Id {
    /// Of two kilobytes, which each part would move; few things have as many parts.
    hasher: Option<Box<blake3::Hasher>>,
    /// Parts that are not hashed yet: the hash is many times faster for many bytes at once.
    parts: Vec<u8>,
}

impl Id {
    /// Parts are collected up to this number of bytes.
    const AT_ONCE: usize = 16 << 10;

    /// `kind` keeps ids of different things apart.
    pub(crate) fn new(kind: &str) -> Id {
        let id = Id {
            hasher: None,
            parts: Vec::with_capacity(256),
        };
        id.text(kind)
    }

    pub(crate) fn text(mut self, text: &str) -> Id {
        self.add(&(text.len() as u64).to_le_bytes());
        self.add(text.as_bytes());
        self
    }

    pub(crate) fn number(mut self, number: i64) -> Id {
        self.add(&number.to_le_bytes());
        self
    }

    fn add(&mut self, part: &[u8]) {
        self.parts.extend_from_slice(part);
        if self.parts.len() >= Id::AT_ONCE {
            self.hasher.get_or_insert_default().update(&self.parts);
            self.parts.clear();
        }
    }

    /// 64 bits: two of 100 million stacks are alike with a probability of 1 in 3,700. It is never
    /// 0, which stands for nothing.
    pub(crate) fn finish(self) -> i64 {
        let hash = match self.hasher {
            None => blake3::hash(&self.parts),
            Some(mut hasher) => hasher.update(&self.parts).finalize(),
        };
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&hash.as_bytes()[..8]);
        match i64::from_le_bytes(bytes) {
            0 => 1,
            id => id,
        }
    }
}

/// The id of a function.
pub(crate) fn function(name: &str, module: &str) -> i64 {
    Id::new("function").text(name).text(module).finish()
}

/// The id of a file in which addresses are those that it was linked for.
pub(crate) fn module(path: &str, build_id: &str) -> i64 {
    Id::new("module").text(path).text(build_id).finish()
}

/// The id of a file in which addresses count from where it was mapped.
pub(crate) fn mapped_module(path: &str, build_id: &str) -> i64 {
    Id::new("mapped").text(path).text(build_id).finish()
}

/// The id of a stack.
pub(crate) fn stack(frames: &[i64], ending: &str, late: bool) -> i64 {
    let id = Id::new("stack").text(ending).number(late.into());
    frames.iter().fold(id, |id, &frame| id.number(frame)).finish()
}
