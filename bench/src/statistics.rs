//! Medians and quartiles.

use std::fmt;

/// The median of some ratios and the middle half of them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Spread {
    low: f64,
    median: f64,
    high: f64,
}

impl Spread {
    /// Of these values; of none, not a number.
    pub(crate) fn of(values: &[f64]) -> Spread {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        Spread {
            low: quantile(&sorted, 0.25),
            median: quantile(&sorted, 0.5),
            high: quantile(&sorted, 0.75),
        }
    }
}

/// Between the two values it falls between, in proportion.
fn quantile(sorted: &[f64], share: f64) -> f64 {
    let Some(last) = sorted.len().checked_sub(1) else {
        return f64::NAN;
    };
    let place = share * last as f64;
    let below = place.floor() as usize;
    let above = (below + 1).min(last);
    sorted[below] + (sorted[above] - sorted[below]) * (place - below as f64)
}

impl fmt::Display for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let percent = |ratio: f64| (ratio - 1.0) * 100.0;
        let (low, median, high) = (percent(self.low), percent(self.median), percent(self.high));
        write!(f, "{:.4} ({median:+.2} %; {low:+.2} to {high:+.2})", self.median)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_middle_is_found() {
        let odd = Spread::of(&[5.0, 1.0, 3.0, 2.0, 4.0]);
        assert_eq!(
            odd,
            Spread {
                low: 2.0,
                median: 3.0,
                high: 4.0
            }
        );
        assert_eq!(Spread::of(&[2.0, 1.0]).median, 1.5);
        assert_eq!(
            Spread::of(&[7.0]),
            Spread {
                low: 7.0,
                median: 7.0,
                high: 7.0
            }
        );
        assert!(Spread::of(&[]).median.is_nan());
        assert_eq!(Spread::of(&[1.025]).to_string(), "1.0250 (+2.50 %; +2.50 to +2.50)");
    }
}
