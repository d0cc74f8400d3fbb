//! Questions to a store, as SQL for the engine that is to answer them.

use std::path::Path;

use jiff::Timestamp;

use crate::error::StoreError;
use crate::place::Store;
use crate::tables::{ALL, CRASHES, Kind, NAMED_STACKS, PARTITIONS, SAMPLES, Table};

/// An engine that reads the tables.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Engine {
    /// DuckDB, on one machine.
    #[default]
    DuckDb,
    /// Apache DataFusion, on one machine.
    DataFusion,
    /// Apache Spark, on one machine or many.
    Spark,
}

/// A question.
#[derive(Debug)]
pub struct Question {
    /// Its name.
    pub name: &'static str,
    /// Its file in the repository.
    pub template: &'static str,
}

macro_rules! question {
    ($name:literal) => {
        Question {
            name: $name,
            template: include_str!(concat!("sql/", $name, ".sql")),
        }
    };
}

/// All questions.
pub static QUESTIONS: [Question; 12] = [
    question!("self"),
    question!("total"),
    question!("load"),
    question!("changed"),
    question!("stacks"),
    question!("rare"),
    question!("threads"),
    question!("modules"),
    question!("complete"),
    question!("recordings"),
    question!("top-crashes"),
    question!("crashes"),
];

impl Question {
    /// The question with this name.
    pub fn named(name: &str) -> Option<&'static Question> {
        QUESTIONS.iter().find(|question| question.name == name)
    }

    /// What it answers, in one sentence.
    pub fn meaning(&self) -> &'static str {
        let line = self.template.lines().next().unwrap_or_default();
        line.strip_prefix("-- ").unwrap_or(line)
    }

    /// Whether it compares two values.
    pub fn compares(&self) -> bool {
        self.template.contains("{old}")
    }

    /// The SQL.
    pub fn sql(&self, choice: &Choice, engine: Engine) -> String {
        let by = choice.by.unwrap_or(if self.compares() { By::Version } else { By::All });
        let by = if self.name == "load" && choice.by.is_none() {
            By::Service
        } else {
            by
        };
        let dialect = Dialect(engine);
        let value = |name: &str| match name {
            "samples" => choice.source(&SAMPLES, dialect),
            "crashes" => choice.source(&CRASHES, dialect),
            "where" => choice.condition(dialect),
            "partitions" => choice.partitions(dialect),
            "by" => by.expression().to_owned(),
            "limit" => choice.limit.to_string(),
            "expand" => dialect.expand().to_owned(),
            "fold" => dialect.fold().to_owned(),
            "old" => dialect.text(&choice.between.0),
            "new" => dialect.text(&choice.between.1),
            name => format!("{{{name}}}"),
        };
        filled(self.template, value)
    }
}

/// The template with its `{placeholders}` replaced. Values are not searched for placeholders: the
/// user's texts are among them.
fn filled(template: &str, value: impl Fn(&str) -> String) -> String {
    let mut sql = String::new();
    let mut rest = template;
    while let Some((before, (name, after))) = rest
        .split_once('{')
        .and_then(|(before, after)| Some((before, after.split_once('}')?)))
    {
        sql += before;
        sql += &value(name);
        rest = after;
    }
    sql + rest
}

/// What results are grouped by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// Nothing.
    All,
    /// The service.
    Service,
    /// The label `version`.
    Version,
    /// The machine.
    Host,
    /// The hour, in UTC.
    Hour,
    /// The day, in UTC.
    Date,
    /// The process's name.
    Process,
    /// The thread's name.
    Thread,
    /// The kind of samples.
    Kind,
}

impl By {
    /// All of them.
    pub const ALL: [By; 9] = [
        By::All,
        By::Service,
        By::Version,
        By::Host,
        By::Hour,
        By::Date,
        By::Process,
        By::Thread,
        By::Kind,
    ];

    /// The column with this name.
    pub fn named(name: &str) -> Option<By> {
        By::ALL.into_iter().find(|by| by.name() == name && *by != By::All)
    }

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            By::All => "all",
            By::Service => "service",
            By::Version => "version",
            By::Host => "host",
            By::Hour => "hour",
            By::Date => "date",
            By::Process => "process",
            By::Thread => "thread",
            By::Kind => "kind",
        }
    }

    const fn expression(self) -> &'static str {
        match self {
            By::All => "'all'",
            By::Hour => "CONCAT(date, ' ', hour, ':00')",
            other => other.name(),
        }
    }
}

/// Which samples count, and how much of the answer is wanted.
#[derive(Clone, Debug)]
pub struct Choice {
    /// From this time on, in microseconds since the epoch.
    pub since: Option<i64>,
    /// Before this time.
    pub until: Option<i64>,
    /// Only this service.
    pub service: Option<String>,
    /// Only samples whose column has the value: host, version, process, thread or kind.
    pub columns: Vec<(By, String)>,
    /// Only recordings with these labels.
    pub labels: Vec<(String, String)>,
    /// Only stacks through this function; its parameters and namespaces may be left out.
    pub function: Option<String>,
    /// What results are grouped by.
    pub by: Option<By>,
    /// The two values that are compared.
    pub between: (String, String),
    /// Rows of the answer, for each group.
    pub limit: u64,
    /// Whether stacks are shown with the names that were found after they were added.
    pub named: bool,
}

impl Default for Choice {
    fn default() -> Self {
        Choice {
            since: None,
            until: None,
            service: None,
            columns: Vec::new(),
            labels: Vec::new(),
            function: None,
            by: None,
            between: Default::default(),
            limit: 20,
            named: false,
        }
    }
}

impl Choice {
    /// The condition on partitions, which every table has.
    fn partitions(&self, dialect: Dialect) -> String {
        let mut parts = Vec::new();
        let date = |time: i64| {
            Timestamp::from_microsecond(time).map_or(String::new(), |time| time.strftime("%Y-%m-%d").to_string())
        };
        if let Some(service) = &self.service {
            parts.push(format!("service = {}", dialect.text(service)));
        }
        if let Some(since) = self.since {
            parts.push(format!("date >= {}", dialect.text(&date(since))));
        }
        if let Some(until) = self.until {
            parts.push(format!("date <= {}", dialect.text(&date(until))));
        }
        match parts.is_empty() {
            true => "TRUE".to_owned(),
            false => parts.join(" AND "),
        }
    }

    /// The samples, or the crashes, with the stacks that are shown. Only names of the chosen
    /// partitions count, since only there everything that their stacks refer to is certain to be.
    fn source(&self, table: &Table, dialect: Dialect) -> String {
        if !self.named {
            return table.name.to_owned();
        }
        let columns = table.columns.iter().map(|column| column.name).chain(PARTITIONS);
        let columns = columns.map(|name| match name {
            "stack" => "COALESCE(n.named, s.stack) AS stack".to_owned(),
            name => format!("s.{name} AS {name}"),
        });
        let columns: Vec<String> = columns.collect();
        format!(
            "(SELECT {} FROM {name} s LEFT JOIN (SELECT stack, named FROM (SELECT stack, named, ROW_NUMBER() OVER \
             (PARTITION BY stack ORDER BY quality DESC, named DESC) AS place FROM (SELECT DISTINCT stack, named, quality \
             FROM {} WHERE {}) every) ranked WHERE place = 1) n ON n.stack = s.stack) {name}",
            columns.join(", "),
            NAMED_STACKS.name,
            self.partitions(dialect),
            name = table.name,
        )
    }

    /// The condition on samples.
    fn condition(&self, dialect: Dialect) -> String {
        let partitions = self.partitions(dialect);
        let mut parts = vec![partitions.clone()];
        parts.extend(self.since.map(|time| format!("time >= {}", dialect.time(time))));
        parts.extend(self.until.map(|time| format!("time < {}", dialect.time(time))));
        for (column, value) in &self.columns {
            parts.push(format!("{} = {}", column.expression(), dialect.text(value)));
        }
        for (key, value) in &self.labels {
            let (key, value) = (dialect.text(key), dialect.text(value));
            parts.push(format!(
                "recording IN (SELECT recording FROM labels WHERE {partitions} AND key = {key} AND value = {value})"
            ));
        }
        if let Some(function) = &self.function {
            let matches = dialect.matches(function);
            parts.push(format!(
                "stack IN (SELECT stack FROM stack_functions WHERE {partitions} AND function IN \
                 (SELECT id FROM functions WHERE {partitions} AND {matches}))"
            ));
        }
        parts.join(" AND ")
    }

    /// The queries whose results [`Selection`](crate::Selection) reads: the samples and what they
    /// refer to.
    pub fn selection(&self, engine: Engine) -> [(&'static Table, String); 5] {
        use crate::tables::{FRAMES, MODULES, RECORDINGS, STACKS};
        let dialect = Dialect(engine);
        let (condition, partitions) = (self.condition(dialect), self.partitions(dialect));
        let samples = self.source(&SAMPLES, dialect);
        let columns = |table: &Table| {
            let names: Vec<&str> = table.columns.iter().map(|column| column.name).collect();
            names.join(", ")
        };
        let of = |table: &'static Table, distinct: &str, rest: String| {
            let from = match table.name == SAMPLES.name {
                true => &samples[..],
                false => table.name,
            };
            let sql = format!("SELECT {distinct}{} FROM {from} WHERE {rest}", columns(table));
            (table, sql)
        };
        let chosen = |column: &str| format!("(SELECT {column} FROM {samples} WHERE {condition})");
        [
            of(&SAMPLES, "", format!("{condition} ORDER BY time, nanos, cpu, pid, tid")),
            of(
                &STACKS,
                "DISTINCT ",
                format!("{partitions} AND id IN {}", chosen("stack")),
            ),
            of(&FRAMES, "DISTINCT ", partitions.clone()),
            of(&MODULES, "DISTINCT ", partitions.clone()),
            of(
                &RECORDINGS,
                "DISTINCT ",
                format!("{partitions} AND id IN {}", chosen("recording")),
            ),
        ]
    }
}

/// How an engine writes what engines write differently.
#[derive(Clone, Copy)]
struct Dialect(Engine);

impl Dialect {
    /// A text as a literal.
    fn text(self, text: &str) -> String {
        match self.0 {
            // A backslash is an escape there.
            Engine::Spark => format!("'{}'", text.replace('\\', r"\\").replace('\'', r"\'")),
            _ => format!("'{}'", text.replace('\'', "''")),
        }
    }

    fn time(self, time: i64) -> String {
        let text = Timestamp::from_microsecond(time)
            .map_or(String::new(), |time| time.strftime("%Y-%m-%d %H:%M:%S%.6f").to_string());
        match self.0 {
            Engine::DuckDb => format!("TIMESTAMPTZ '{text}+00'"),
            Engine::DataFusion => format!("CAST('{}Z' AS TIMESTAMP)", text.replace(' ', "T")),
            Engine::Spark => format!("TIMESTAMP '{text}+00:00'"),
        }
    }

    /// Whether `function` is the one that a user names, as reports match it.
    fn matches(self, wanted: &str) -> String {
        let ending = format!("::{wanted}");
        let (length, ending) = (ending.chars().count(), self.text(&ending));
        format!(
            "(RIGHT(CONCAT('::', function), {length}) = {ending} OR \
             RIGHT(CONCAT('::', SPLIT_PART(function, '(', 1)), {length}) = {ending})"
        )
    }

    /// The frames of `distinct_stacks`, each with its place, counted from the innermost.
    fn expand(self) -> &'static str {
        match self.0 {
            Engine::DuckDb => {
                "SELECT id, UNNEST(frames) AS frame, GENERATE_SUBSCRIPTS(frames, 1) AS place FROM distinct_stacks"
            }
            Engine::DataFusion => {
                "SELECT id, UNNEST(frames) AS frame, UNNEST(RANGE(1, CAST(CARDINALITY(frames) AS BIGINT) + 1)) AS place \
                 FROM distinct_stacks"
            }
            Engine::Spark => {
                "SELECT id, place, frame FROM distinct_stacks LATERAL VIEW POSEXPLODE(frames) AS place, frame"
            }
        }
    }

    /// The labels of `labels_of`, joined from the outermost on.
    fn fold(self) -> &'static str {
        match self.0 {
            Engine::DuckDb | Engine::DataFusion => "STRING_AGG(label, ';' ORDER BY place DESC)",
            Engine::Spark => {
                "ARRAY_JOIN(TRANSFORM(SORT_ARRAY(COLLECT_LIST(STRUCT(place, label)), FALSE), x -> x.label), ';')"
            }
        }
    }
}

impl Store {
    /// The statements that give the tables their names in the engine. For a store in a bucket they
    /// have the server, but no credentials.
    ///
    /// # Errors
    ///
    /// If the store cannot be read.
    pub fn views(&self, engine: Engine) -> Result<Vec<String>, StoreError> {
        let root = self.storage().absolute()?;
        let mut statements = Vec::new();
        match engine {
            Engine::DuckDb => statements.extend(self.storage().duckdb()),
            Engine::DataFusion => {}
            Engine::Spark => {
                // Else the hour 06 is the number 6, and results have times of a kind of their own.
                statements.push("SET spark.sql.sources.partitionColumnTypeInference.enabled=false".to_owned());
                statements.push("SET spark.sql.session.timeZone=UTC".to_owned());
                statements.push("SET spark.sql.parquet.outputTimestampType=TIMESTAMP_MICROS".to_owned());
            }
        }
        for table in ALL {
            let has_files = self.storage().has_files(&self.table(table))?;
            statements.push(view(&root, table, has_files, engine));
        }
        Ok(statements)
    }

    /// Whether `store symbols` has added names: then [`Choice::named`] makes questions use them.
    ///
    /// # Errors
    ///
    /// If the bucket cannot be read.
    pub fn has_names(&self) -> Result<bool, StoreError> {
        self.storage().has_files(&self.table(&NAMED_STACKS))
    }
}

fn view(store: &Path, table: &Table, has_files: bool, engine: Engine) -> String {
    let (name, folder) = (table.name, store.join(table.name));
    if !has_files {
        let columns = table
            .columns
            .iter()
            .map(|column| empty(column.name, column.kind, engine));
        let keys = PARTITIONS.iter().map(|key| empty(key, Kind::Text, engine));
        let columns: Vec<String> = columns.chain(keys).collect();
        let create = match engine {
            Engine::DataFusion => "CREATE VIEW",
            _ => "CREATE OR REPLACE TEMPORARY VIEW",
        };
        return format!("{create} {name} AS SELECT {} WHERE FALSE", columns.join(", "));
    }
    let path = folder.display().to_string().replace('\'', "''");
    let keys = PARTITIONS.join(", ");
    match engine {
        Engine::DuckDb => format!(
            "CREATE OR REPLACE TEMPORARY VIEW {name} AS SELECT * FROM read_parquet('{path}/*/*/*/*.parquet', \
             hive_partitioning = true, hive_types = {{'date': VARCHAR, 'hour': VARCHAR, 'service': VARCHAR}})"
        ),
        Engine::DataFusion => {
            format!("CREATE EXTERNAL TABLE {name} STORED AS PARQUET PARTITIONED BY ({keys}) LOCATION '{path}/'")
        }
        Engine::Spark => format!("CREATE OR REPLACE TEMPORARY VIEW {name} USING parquet OPTIONS (path '{path}')"),
    }
}

/// A column of a table without files.
fn empty(name: &str, kind: Kind, engine: Engine) -> String {
    let of = match (kind, engine) {
        (Kind::Time, Engine::DuckDb) => "TIMESTAMPTZ",
        (Kind::Time, _) => "TIMESTAMP",
        (Kind::Long, _) => "BIGINT",
        (Kind::Int, _) => "INTEGER",
        (Kind::Bool, _) => "BOOLEAN",
        (Kind::Text, Engine::Spark) => "STRING",
        (Kind::Text, _) => "VARCHAR",
        (Kind::Longs, Engine::DuckDb) => "BIGINT[]",
        (Kind::Longs, _) => "ARRAY<BIGINT>",
    };
    format!("CAST(NULL AS {of}) AS {name}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_question_has_a_placeholder_left() {
        let choice = Choice {
            since: Some(0),
            until: Some(1_000_000),
            service: Some("web".into()),
            columns: vec![(By::Host, "it's".into())],
            labels: vec![("zone".into(), "eu".into())],
            function: Some("parse".into()),
            between: ("1".into(), "2".into()),
            named: true,
            ..Choice::default()
        };
        for question in &QUESTIONS {
            for engine in [Engine::DuckDb, Engine::DataFusion, Engine::Spark] {
                let sql = question.sql(&choice, engine);
                assert!(!sql.contains('{') && !sql.contains('}'), "{sql}");
                assert!(sql.contains("service = 'web'"), "{sql}");
                assert!(question.meaning().ends_with('.'), "{}", question.meaning());
            }
        }
    }

    #[test]
    fn placeholders_in_values_stay() {
        let labels = ["{by}", "{old}", "{", "{limit"].map(|value| ("key".to_owned(), value.to_owned()));
        let choice = Choice {
            labels: labels.to_vec(),
            between: ("{new}".to_owned(), "{where}".to_owned()),
            ..Choice::default()
        };
        for question in &QUESTIONS {
            let sql = question.sql(&choice, Engine::DuckDb);
            for (_, value) in &labels {
                assert!(sql.contains(&format!("value = '{value}'")), "{sql}");
            }
            let compared = sql.contains("= '{new}'") && sql.contains("= '{where}'");
            assert_eq!(compared, question.compares(), "{sql}");
        }
    }

    #[test]
    fn literals_end_where_they_should() {
        for (text, duckdb, spark) in [
            ("it's", "'it''s'", r"'it\'s'"),
            (r"a\", r"'a\'", r"'a\\'"),
            (r"a\'", r"'a\'''", r"'a\\\''"),
        ] {
            assert_eq!(Dialect(Engine::DuckDb).text(text), duckdb);
            assert_eq!(Dialect(Engine::Spark).text(text), spark, "{text}");
        }
    }
}
