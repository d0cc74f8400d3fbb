//! Names of log levels.

/// The name of a log level as LTTng numbers them.
pub(super) fn level_name(level: i64) -> Option<&'static str> {
    const NAMES: [&str; 15] = [
        "TRACE_EMERG",
        "TRACE_ALERT",
        "TRACE_CRIT",
        "TRACE_ERR",
        "TRACE_WARNING",
        "TRACE_NOTICE",
        "TRACE_INFO",
        "TRACE_DEBUG_SYSTEM",
        "TRACE_DEBUG_PROGRAM",
        "TRACE_DEBUG_PROCESS",
        "TRACE_DEBUG_MODULE",
        "TRACE_DEBUG_UNIT",
        "TRACE_DEBUG_FUNCTION",
        "TRACE_DEBUG_LINE",
        "TRACE_DEBUG",
    ];
    NAMES.get(usize::try_from(level).ok()?).copied()
}
