//! What is said about a recording when it is added.

/// How exactly samples are stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Resolution {
    /// A row for each sample, with its time, thread and CPU.
    #[default]
    Exact,
    /// A row for the samples of a minute with the same stack in threads of the same name.
    Minute,
}

/// What a recording does not say about itself.
#[derive(Clone, Debug, Default)]
pub struct Description {
    /// The service; see [`is_service`](crate::is_service).
    pub service: String,
    /// The machine.
    pub host: String,
    /// Any further labels; the one called `version` is a column of the samples.
    pub labels: Vec<(String, String)>,
    /// How exactly samples are stored.
    pub resolution: Resolution,
}

impl Description {
    /// The label `version`; empty without one.
    pub fn version(&self) -> &str {
        let version = self.labels.iter().find(|(key, _)| key == "version");
        version.map_or("", |(_, value)| value)
    }
}
