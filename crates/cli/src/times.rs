//! Times as options give them: a number with a unit, or of seconds.

use std::time::Duration;

/// A time that is not 0.
pub(crate) fn seconds(text: &str) -> Result<Duration, String> {
    let time = duration(text).filter(|time| !time.is_zero());
    time.ok_or_else(|| "not a time, as 5, 0.5, 500ms, 10s, 2min".to_owned())
}

/// A time with its unit, or of seconds.
pub(crate) fn duration(text: &str) -> Option<Duration> {
    let (number, unit) = measure(text)?;
    let seconds = match unit {
        "ns" => 1e-9,
        "us" => 1e-6,
        "ms" => 0.001,
        "" | "s" | "sec" => 1.0,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        "d" => 86_400.0,
        _ => return None,
    };
    Duration::try_from_secs_f64(number * seconds).ok()
}

/// A number, and the unit that follows it.
pub(crate) fn measure(text: &str) -> Option<(f64, &str)> {
    let end = text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len());
    let number: f64 = text[..end].trim().parse().ok()?;
    (number.is_finite() && number > 0.0).then_some((number, &text[end..]))
}
