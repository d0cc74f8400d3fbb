//! Objects in a bucket, by S3's interface. An object appears whole, and replaces none.

use std::error::Error;
use std::fmt;
use std::fs::File;
use std::future::Future;
use std::io::{self, Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use futures_util::{StreamExt, TryStreamExt};
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey, S3ConditionalPut};
use object_store::client::{HttpError, HttpErrorKind};
use object_store::path::Path as Key;
use object_store::{
    BackoffConfig, ClientConfigKey, ObjectMeta, ObjectStore, ObjectStoreExt, PutMode, PutOptions, PutPayload,
    RetryConfig,
};
use tokio::runtime::{self, Runtime};

use super::{is_table, partition_of};
use crate::error::StoreError;
use crate::partition::Partition;

/// How long a request may take, with its object, unless `AWS_TIMEOUT` says otherwise.
const TIMEOUT: &str = "60 seconds";
/// How long failed requests are repeated.
const PATIENCE: Duration = Duration::from_secs(30);
/// The longest wait between two of these.
const MOST_WAIT: Duration = Duration::from_secs(2);
/// How often an object is sent at least if there is no answer, which may take longer than that.
const ATTEMPTS: u32 = 3;

/// A part of a bucket.
#[derive(Clone)]
pub(crate) struct Bucket {
    root: PathBuf,
    prefix: String,
    /// What engines need to know about the server.
    server: Server,
    connection: Arc<Connection>,
}

struct Connection {
    client: Box<dyn ObjectStore>,
    /// Runs requests in the thread that waits for them.
    runtime: Runtime,
}

#[derive(Clone)]
struct Server {
    endpoint: Option<String>,
    region: Option<String>,
    /// Whether the bucket is a part of the server's name.
    in_host: bool,
}

impl fmt::Debug for Bucket {
    /// Credentials are left out.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.root.fmt(f)
    }
}

impl Connection {
    fn of(client: Box<dyn ObjectStore>) -> io::Result<Connection> {
        let runtime = runtime::Builder::new_current_thread()
            .enable_all()
            // The system's look-ups of host names block; their thread ends with them.
            .thread_keep_alive(Duration::from_millis(1))
            .build()?;
        Ok(Connection { client, runtime })
    }

    fn wait<T>(&self, request: impl Future<Output = object_store::Result<T>>) -> object_store::Result<T> {
        self.runtime.block_on(request)
    }
}

impl Bucket {
    /// A part of a bucket, with the server and the credentials of the environment (`AWS_…`).
    pub(super) fn of(bucket: &str, prefix: &str) -> Result<Bucket, StoreError> {
        let root = match prefix {
            "" => PathBuf::from(format!("s3://{bucket}")),
            prefix => PathBuf::from(format!("s3://{bucket}/{prefix}")),
        };
        // Another part of the program may have chosen already.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let mut builder = AmazonS3Builder::from_env()
            .with_bucket_name(bucket)
            .with_conditional_put(S3ConditionalPut::ETagMatch)
            .with_retry(RetryConfig {
                backoff: BackoffConfig {
                    max_backoff: MOST_WAIT,
                    ..BackoffConfig::default()
                },
                // Time alone ends it.
                max_retries: usize::MAX,
                retry_timeout: PATIENCE,
            });
        if std::env::var_os("AWS_TIMEOUT").is_none() {
            builder = builder.with_config(AmazonS3ConfigKey::Client(ClientConfigKey::Timeout), TIMEOUT);
        }
        let value = |key| builder.get_config_value(&key);
        let server = Server {
            endpoint: value(AmazonS3ConfigKey::S3Endpoint).or_else(|| value(AmazonS3ConfigKey::Endpoint)),
            region: value(AmazonS3ConfigKey::Region),
            in_host: value(AmazonS3ConfigKey::VirtualHostedStyleRequest).as_deref() == Some("true"),
        };
        let allows_http = value(AmazonS3ConfigKey::Client(ClientConfigKey::AllowHttp)).as_deref() == Some("true");
        let is_http = server
            .endpoint
            .as_ref()
            .is_some_and(|endpoint| endpoint.starts_with("http://"));
        if is_http && !allows_http {
            let what = "the server's URL begins with http://, but AWS_ALLOW_HTTP is not true";
            let error = io::Error::new(io::ErrorKind::InvalidInput, what);
            return Err(StoreError::File(root, error));
        }
        let client = builder
            .build()
            .map_err(|error| StoreError::File(root.clone(), io_error(&error)))?;
        let connection = Connection::of(Box::new(client)).map_err(StoreError::file(&root))?;
        Ok(Bucket {
            root,
            prefix: prefix.to_owned(),
            server,
            connection: Arc::new(connection),
        })
    }

    /// A bucket without a server.
    #[cfg(test)]
    pub(super) fn in_memory(prefix: &str) -> Bucket {
        Bucket {
            root: PathBuf::from(format!("s3://bucket/{prefix}")),
            prefix: prefix.to_owned(),
            server: Server {
                endpoint: None,
                region: None,
                in_host: false,
            },
            connection: Arc::new(Connection::of(Box::new(object_store::memory::InMemory::new())).unwrap()),
        }
    }

    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    /// The object's key.
    fn key(&self, path: &Path) -> io::Result<Key> {
        let name = path.strip_prefix(&self.root).ok().and_then(Path::to_str);
        let name = name.ok_or(io::ErrorKind::InvalidFilename)?;
        let parts = [&self.prefix, name].into_iter().filter(|part| !part.is_empty());
        let key = parts.collect::<Vec<_>>().join("/");
        Key::parse(key).map_err(|error| io::Error::new(io::ErrorKind::InvalidFilename, error))
    }

    /// The name of the object with this key.
    fn path(&self, key: &Key) -> PathBuf {
        let name = key.as_ref().strip_prefix(&self.prefix).unwrap_or_default();
        self.root.join(name.trim_start_matches('/'))
    }

    /// The names of the objects and folders directly in it.
    pub(super) fn names(&self) -> io::Result<Vec<String>> {
        let listed = self.list_in(&self.root)?;
        let objects = listed.objects.iter().map(|object| &object.location);
        let keys = objects.chain(&listed.common_prefixes);
        Ok(keys.filter_map(|key| key.filename().map(str::to_owned)).collect())
    }

    pub(super) fn files(&self, folder: &Path) -> io::Result<Vec<PathBuf>> {
        let listed = self.list_in(folder)?;
        let mut files: Vec<PathBuf> = listed
            .objects
            .iter()
            .map(|object| self.path(&object.location))
            .collect();
        files.retain(|path| is_table(path));
        files.sort();
        Ok(files)
    }

    fn list_in(&self, folder: &Path) -> io::Result<object_store::ListResult> {
        let key = self.key(folder)?;
        let listed = self.connection.client.list_with_delimiter(Some(&key));
        self.connection.wait(listed).map_err(|error| io_error(&error))
    }

    /// All objects of tables below a folder.
    fn files_below(&self, folder: &Path) -> io::Result<Vec<PathBuf>> {
        let key = self.key(folder)?;
        let listed = self.connection.client.list(Some(&key));
        let listed: Vec<ObjectMeta> = self
            .connection
            .wait(listed.try_collect())
            .map_err(|error| io_error(&error))?;
        let paths = listed.iter().map(|object| self.path(&object.location));
        Ok(paths.filter(|path| is_table(path)).collect())
    }

    pub(super) fn partitions(&self, table: &Path) -> io::Result<Vec<Partition>> {
        let files = self.files_below(table)?;
        let names = files.iter().filter_map(|path| path.strip_prefix(table).ok());
        Ok(names.filter_map(partition_of).collect())
    }

    pub(super) fn has_files(&self, folder: &Path) -> io::Result<bool> {
        let key = self.key(folder)?;
        let mut listed = self.connection.client.list(Some(&key));
        let first = async {
            while let Some(object) = listed.next().await {
                if is_table(&self.path(&object?.location)) {
                    return Ok(true);
                }
            }
            Ok(false)
        };
        self.connection.wait(first).map_err(|error| io_error(&error))
    }

    /// The object in a file without a name, from which it can be read in any order.
    pub(super) fn open(&self, path: &Path) -> io::Result<File> {
        let key = self.key(path)?;
        let mut file = tempfile::tempfile()?;
        let copy = async {
            let mut object = self.connection.client.get(&key).await?.into_stream();
            while let Some(part) = object.next().await {
                if let Err(error) = file.write_all(&part?) {
                    return Ok(Err(error));
                }
            }
            Ok(Ok(()))
        };
        self.connection.wait(copy).map_err(|error| io_error(&error))??;
        file.rewind()?;
        Ok(file)
    }

    fn exists(&self, key: &Key) -> io::Result<bool> {
        match self.connection.wait(self.connection.client.head(key)) {
            Ok(_) => Ok(true),
            Err(object_store::Error::NotFound { .. }) => Ok(false),
            Err(error) => Err(io_error(&error)),
        }
    }

    /// Writes an object unless it exists; see [`Storage::create`](super::Storage::create).
    pub(super) fn create(&self, path: &Path, write: impl FnOnce(&mut File) -> io::Result<()>) -> io::Result<bool> {
        let key = self.key(path)?;
        let mut file = tempfile::tempfile()?;
        write(&mut file)?;
        file.rewind()?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        let bytes = PutPayload::from(bytes);
        let started = Instant::now();
        let mut attempts = 1;
        loop {
            let options = PutOptions::from(PutMode::Create);
            let put = self.connection.client.put_opts(&key, bytes.clone(), options);
            match self.connection.wait(put) {
                Ok(_) => return Ok(true),
                // The answer to a conflict of two writers is the same, and neither may have won.
                Err(object_store::Error::AlreadyExists { .. }) if self.exists(&key)? => return Ok(false),
                // Two writers were in each other's way, or the answer was lost: it may be there.
                Err(error) if attempts >= ATTEMPTS && started.elapsed() > PATIENCE => return Err(io_error(&error)),
                Err(object_store::Error::AlreadyExists { .. }) => {}
                Err(error) if is_unanswered(&error) => {}
                Err(error) => return Err(io_error(&error)),
            }
            thread::sleep(MOST_WAIT.min(Duration::from_millis(100) * attempts));
            attempts += 1;
        }
    }

    /// Removes objects, in any order. Those that are gone already are no error.
    pub(super) fn remove(&self, paths: &[PathBuf]) -> io::Result<()> {
        let keys = paths.iter().map(|path| self.key(path));
        let keys: Vec<Key> = keys.collect::<io::Result<_>>()?;
        let keys = futures_util::stream::iter(keys.into_iter().map(Ok)).boxed();
        let removed = self.connection.client.delete_stream(keys);
        let all = removed.try_for_each(|_| std::future::ready(Ok(())));
        match self.connection.wait(all) {
            Err(error) if !matches!(error, object_store::Error::NotFound { .. }) => Err(io_error(&error)),
            _ => Ok(()),
        }
    }

    pub(super) fn duckdb(&self) -> Vec<String> {
        self.server.duckdb(self.root.to_str().unwrap_or_default())
    }
}

impl Server {
    /// DuckDB takes region and credentials from the environment, but not the server.
    fn duckdb(&self, root: &str) -> Vec<String> {
        let text = |text: &str| format!("'{}'", text.replace('\'', "''"));
        let mut statements = vec!["LOAD httpfs".to_owned()];
        statements.extend(
            self.region
                .as_ref()
                .map(|region| format!("SET s3_region = {}", text(region))),
        );
        if let Some(endpoint) = &self.endpoint {
            let is_http = endpoint.starts_with("http://");
            let (_, host) = endpoint.split_once("://").unwrap_or(("", endpoint));
            let (_, host) = host.rsplit_once('@').unwrap_or(("", host));
            let host = host.trim_end_matches('/');
            let bucket = root.trim_start_matches("s3://").split('/').next().unwrap_or_default();
            let host = match self.in_host {
                true => host.strip_prefix(&format!("{bucket}.")).unwrap_or(host),
                false => host,
            };
            let style = if self.in_host { "vhost" } else { "path" };
            statements.push(format!("SET s3_endpoint = {}", text(host)));
            statements.push(format!("SET s3_url_style = '{style}'"));
            statements.push(format!("SET s3_use_ssl = {}", !is_http));
        }
        statements
    }
}

/// Whether a request may have arrived or not.
fn is_unanswered(error: &object_store::Error) -> bool {
    let is_lost = |error: &HttpError| matches!(error.kind(), HttpErrorKind::Timeout | HttpErrorKind::Interrupted);
    chain(error).any(|error| error.downcast_ref::<HttpError>().is_some_and(is_lost))
}

/// An error and those that caused it.
fn chain<'e>(error: &'e (dyn Error + 'static)) -> impl Iterator<Item = &'e (dyn Error + 'static)> {
    std::iter::successors(Some(error), |&error| error.source())
}

/// What happened, in a few words and without the request, which has the access key.
fn io_error(error: &object_store::Error) -> io::Error {
    let text = error.to_string();
    if let Some(status) = status(&text) {
        let code = code(&text);
        let what = match code {
            "NoSuchBucket" => "the bucket does not exist".to_owned(),
            "" => format!("the server answered {status}"),
            code => format!("the server answered {status}: {code}"),
        };
        let kind = match (error, code) {
            // That is not a missing object.
            (_, "NoSuchBucket") => io::ErrorKind::Other,
            (object_store::Error::NotFound { .. }, _) => io::ErrorKind::NotFound,
            _ if status.starts_with("401") || status.starts_with("403") => io::ErrorKind::PermissionDenied,
            _ => io::ErrorKind::Other,
        };
        return io::Error::new(kind, what);
    }
    if text.contains("redirect without LOCATION") {
        let what = "the bucket is in another region than AWS_REGION says";
        return io::Error::new(io::ErrorKind::InvalidInput, what);
    }
    let kind = match error {
        object_store::Error::NotFound { .. } => io::ErrorKind::NotFound,
        _ => io::ErrorKind::Other,
    };
    let http = chain(error).find_map(|error| error.downcast_ref::<HttpError>());
    let cause = chain(error).last().map(ToString::to_string).unwrap_or_default();
    let what = match http.map(HttpError::kind) {
        Some(HttpErrorKind::Timeout) => "the server did not answer in time".to_owned(),
        Some(HttpErrorKind::Connect) => format!("no connection to the server: {cause}"),
        _ => cause,
    };
    io::Error::new(kind, what)
}

/// The status of the server's answer.
fn status(text: &str) -> Option<&str> {
    let (_, status) = text.split_once("status code: ")?;
    let status = status.split([':', '\n']).next()?.trim();
    status.starts_with(|c: char| c.is_ascii_digit()).then_some(status)
}

/// What S3 calls the error.
fn code(text: &str) -> &str {
    let code = text
        .split_once("<Code>")
        .and_then(|(_, rest)| rest.split_once("</Code>"));
    let code = code.map_or("", |(code, _)| code);
    match code.len() <= 64 && code.chars().all(|c| c.is_ascii_alphanumeric()) {
        true => code,
        false => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_that_is_there_stays() {
        for prefix in ["", "a", "a/b"] {
            let bucket = Bucket::in_memory(prefix);
            let table = bucket.root().join("samples");
            let folder = table.join("date=2026-11-23/hour=16/service=web");
            let path = folder.join("1.parquet");
            assert!(!bucket.has_files(&table).unwrap());
            assert!(bucket.create(&path, |out| out.write_all(b"first")).unwrap());
            assert!(!bucket.create(&path, |out| out.write_all(b"second")).unwrap());
            let mut text = String::new();
            bucket.open(&path).unwrap().read_to_string(&mut text).unwrap();
            assert_eq!(text, "first");
            let failed = bucket.create(&folder.join("2.parquet"), |out| {
                out.write_all(b"half")?;
                Err(io::ErrorKind::StorageFull.into())
            });
            assert!(failed.is_err());
            assert_eq!(bucket.files(&folder).unwrap(), [path.as_path()]);
            assert_eq!(bucket.partitions(&table).unwrap().len(), 1);
            assert_eq!(bucket.names().unwrap(), ["samples"]);
            assert!(bucket.has_files(&table).unwrap());
            bucket.remove(&[path.clone(), folder.join("none.parquet")]).unwrap();
            assert_eq!(bucket.open(&path).unwrap_err().kind(), io::ErrorKind::NotFound);
        }
    }

    #[test]
    fn names_of_others_are_not_in_the_prefix() {
        let bucket = Bucket::in_memory("fleet");
        let other = Bucket::in_memory("fleet2");
        let other = Bucket {
            connection: Arc::clone(&bucket.connection),
            ..other
        };
        let path = other.root().join("samples/1.parquet");
        assert!(other.create(&path, |_| Ok(())).unwrap());
        assert!(bucket.names().unwrap().is_empty());
        assert!(bucket.key(&path).is_err());
    }

    #[test]
    fn an_answer_is_a_status_and_a_code() {
        let refusal = "Error performing PUT http://127.0.0.1/bucket/a in 2ms - Server returned non-2xx status code: \
                       403 Forbidden: <?xml version=\"1.0\"?><Error><Code>SignatureDoesNotMatch</Code>\
                       <AWSAccessKeyId>AKIA</AWSAccessKeyId></Error>";
        assert_eq!(status(refusal), Some("403 Forbidden"));
        assert_eq!(code(refusal), "SignatureDoesNotMatch");
        let error = object_store::Error::Generic {
            store: "S3",
            source: refusal.into(),
        };
        let error = io_error(&error);
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
        assert_eq!(
            error.to_string(),
            "the server answered 403 Forbidden: SignatureDoesNotMatch"
        );
        assert_eq!(
            status("status code: 503 Service Unavailable: "),
            Some("503 Service Unavailable")
        );
        assert_eq!(status("operation timed out"), None);
        assert_eq!(code("<Code>\u{1b}[31m</Code>"), "");
    }

    #[test]
    fn engines_know_the_server_but_no_secret() {
        let server = |endpoint: Option<&str>, in_host| Server {
            endpoint: endpoint.map(str::to_owned),
            region: Some("eu-north-1".to_owned()),
            in_host,
        };
        let own = server(Some("http://user:secret@127.0.0.1:9000/"), false).duckdb("s3://bucket/fleet");
        assert!(
            own.contains(&"SET s3_endpoint = '127.0.0.1:9000'".to_owned()),
            "{own:?}"
        );
        assert!(own.contains(&"SET s3_use_ssl = false".to_owned()), "{own:?}");
        assert!(!own.concat().contains("secret"), "{own:?}");
        let in_host = server(Some("https://bucket.example.org"), true).duckdb("s3://bucket/fleet");
        assert!(
            in_host.contains(&"SET s3_endpoint = 'example.org'".to_owned()),
            "{in_host:?}"
        );
        assert!(
            in_host.contains(&"SET s3_url_style = 'vhost'".to_owned()),
            "{in_host:?}"
        );
        let amazon = server(None, false).duckdb("s3://bucket");
        assert!(!amazon.concat().contains("endpoint"), "{amazon:?}");
    }
}
