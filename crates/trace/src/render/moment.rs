//! Times that people type.

use jiff::Timestamp;
use jiff::civil::{DateTime, Time};
use jiff::tz::TimeZone;

/// A time, as in babeltrace2's `--begin`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// Nanoseconds from the clock's origin: `[-]SECONDS[.FRACTION]`.
    Nanoseconds(i64),
    /// `YYYY-MM-DD[ hh:mm[:ss[.FRACTION]]]`.
    Date(DateTime),
    /// `hh:mm[:ss[.FRACTION]]`: on the day of the first event.
    Time(Time),
}

impl Moment {
    /// Reads a time; `None` if it is not one.
    pub fn parse(text: &str) -> Option<Moment> {
        if let Some(nanoseconds) = seconds(text) {
            return Some(Moment::Nanoseconds(nanoseconds));
        }
        // Signs and zones would be accepted too.
        if !text.starts_with(|first: char| first.is_ascii_digit()) {
            return None;
        }
        if !text.contains('-') {
            return text.contains(':').then(|| text.parse().ok().map(Moment::Time))?;
        }
        text.parse().ok().map(Moment::Date)
    }

    /// Nanoseconds from the Unix epoch, given those of the first event; `None` if 64 bits do not
    /// hold them.
    pub fn nanoseconds(self, first: impl FnOnce() -> Option<i64>, utc: bool) -> Option<i64> {
        let zone = if utc { TimeZone::UTC } else { TimeZone::system() };
        let date = match self {
            Moment::Nanoseconds(nanoseconds) => return Some(nanoseconds),
            Moment::Date(date) => date,
            Moment::Time(time) => {
                let first = Timestamp::from_nanosecond(i128::from(first()?)).ok()?;
                first.to_zoned(zone.clone()).date().to_datetime(time)
            }
        };
        let nanoseconds = date.to_zoned(zone).ok()?.timestamp().as_nanosecond();
        i64::try_from(nanoseconds).ok()
    }
}

fn seconds(text: &str) -> Option<i64> {
    let (sign, digits) = text.strip_prefix('-').map_or((1, text), |digits| (-1, digits));
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, "0"));
    let is_number = |digits: &str| !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    if !is_number(whole) || !is_number(fraction) || fraction.len() > 9 {
        return None;
    }
    let nanoseconds: i64 = format!("{fraction:0<9}").parse().ok()?;
    let whole: i64 = whole.parse().ok()?;
    whole
        .checked_mul(1_000_000_000)?
        .checked_add(nanoseconds)?
        .checked_mul(sign)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_forms() {
        let first = || Some(1_700_000_000_000_000_000);
        for (text, expected) in [
            ("1700000000.25", Some(1_700_000_000_250_000_000)),
            ("-1.5", Some(-1_500_000_000)),
            ("0", Some(0)),
            ("2023-11-14 22:13:20", first()),
            ("2023-11-14T22:13:20.000000001", Some(1_700_000_000_000_000_001)),
            ("2023-11-14 22:13", Some(1_699_999_980_000_000_000)),
            ("2023-11-14", Some(1_699_920_000_000_000_000)),
            ("22:13:20.5", Some(1_700_000_000_500_000_000)),
            ("22:13", Some(1_699_999_980_000_000_000)),
        ] {
            let moment = Moment::parse(text).unwrap_or_else(|| panic!("{text}"));
            assert_eq!(moment.nanoseconds(first, true), expected, "{text}");
        }
        for text in [
            "",
            "-",
            "x",
            "1.",
            ".5",
            "1.0000000001",
            "25:00",
            "2023-13-01",
            "99999999999999999999",
            "+1",
        ] {
            assert_eq!(Moment::parse(text), None, "{text}");
        }
    }
}
