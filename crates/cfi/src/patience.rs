//! When something that failed is tried again.

/// Tries something again only after twice as many failures each time.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Patience {
    /// What was not tried since it was the last time.
    passed: u32,
    next: u32,
}

impl Patience {
    /// Whether it is tried now.
    pub(crate) fn is_over(&mut self) -> bool {
        if self.passed < self.next {
            self.passed += 1;
            return false;
        }
        self.passed = 0;
        self.next = self.next.saturating_mul(2).max(1);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_grows() {
        let mut patience = Patience::default();
        let tried: Vec<u32> = (0..20).filter(|_| patience.is_over()).collect();
        assert_eq!(tried, [0, 2, 5, 10, 19]);
    }
}
