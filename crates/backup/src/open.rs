//! Opening each kind of store.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use object_store::aws::AmazonS3Builder;
use object_store::azure::MicrosoftAzureBuilder;
use object_store::gcp::{GcpCredential, GoogleCloudStorageBuilder};
use object_store::local::LocalFileSystem;
use object_store::{BackoffConfig, RetryConfig, StaticCredentialProvider};
use stateward_core::store::{
    AbsStore, FileStore, GcsStore, OssStore, S3Store, Store as Block, StoreBlocks, token_message,
};

use crate::credentials::{self, Aws};
use crate::error::{Error, Reason};
use crate::handle::Store;
use crate::roots;

/// The endpoint of an OSS store that names none, as in the old operator.
const OSS_ENDPOINT: &str = "http://oss-cn-hangzhou.aliyuncs.com";

impl Store {
    /// Opens the one store that is set. `secrets` is the folder with the store's secret, `claim` the root of a `file`
    /// store's claim. Nothing is asked of the store yet.
    pub fn open(place: &StoreBlocks, secrets: &Path, claim: &Path) -> Result<Self, Error> {
        let block = place
            .store(None)
            .map_err(|error| Error::new(Reason::StoreInvalid, error.to_string()))?;
        if let Some(secret) = block.needs_secret() {
            return Err(Error::new(Reason::StoreInvalid, token_message(secret)));
        }
        match block {
            Block::S3(block) => s3(block, secrets),
            Block::Abs(block) => abs(block, secrets),
            Block::Gcs(block) => gcs(block, secrets),
            Block::Oss(block) => oss(block, secrets),
            Block::File(block) => folder(block, claim),
        }
    }
}

/// Short, since whoever started us tries again with growing pauses and can say why.
fn retries() -> RetryConfig {
    RetryConfig {
        backoff: BackoffConfig {
            init_backoff: Duration::from_millis(100),
            max_backoff: Duration::from_secs(2),
            base: 2.0,
        },
        max_retries: 4,
        retry_timeout: Duration::from_secs(30),
    }
}

/// `bucket/key` in two.
fn split(path: &str) -> Result<(String, String), Error> {
    let unfit = || {
        let message = format!("the path \"{path}\" names no bucket and file: write it as \"mybucket/etcd.backup\"");
        Error::new(Reason::StoreInvalid, message)
    };
    let (bucket, key) = path.split_once('/').ok_or_else(unfit)?;
    if bucket.is_empty() || key.is_empty() || key.ends_with('/') {
        return Err(unfit());
    }
    Ok((bucket.to_owned(), key.to_owned()))
}

fn built<T>(made: Result<T, object_store::Error>, path: &str) -> Result<T, Error> {
    made.map_err(|error| {
        let message = format!("the store of \"{path}\" cannot be opened as it is described: {error}");
        Error::new(Reason::StoreInvalid, message)
    })
}

/// Where the bucket of an S3 endpoint is: in the host's name, or in the path where the host cannot carry it.
struct Address {
    endpoint: String,
    in_host: bool,
}

fn address(endpoint: &str, bucket: &str, force_path: bool) -> Result<Address, Error> {
    let unfit = || {
        let message = format!("the endpoint \"{endpoint}\" is no URL: write it as \"https://s3.example.com\"");
        Error::new(Reason::StoreInvalid, message)
    };
    if endpoint.ends_with("//") {
        return Err(unfit());
    }
    let endpoint = endpoint.trim_end_matches('/');
    let with_scheme = if endpoint.contains("://") {
        endpoint.to_owned()
    } else {
        format!("https://{endpoint}")
    };
    let (scheme, rest) = with_scheme.split_once("://").ok_or_else(unfit)?;
    let uri: http::Uri = with_scheme.parse().map_err(|_| unfit())?;
    let host = uri.host().filter(|host| !host.is_empty()).ok_or_else(unfit)?;
    if !matches!(scheme, "http" | "https") {
        return Err(unfit());
    }
    // An address has no subdomains, and a bucket with dots fits no wildcard certificate.
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    let literal = bare.parse::<std::net::IpAddr>().is_ok() || host == "localhost";
    let no_certificate = scheme == "https" && bucket.contains('.');
    let in_host = !(force_path || literal || no_certificate);
    let endpoint = if in_host {
        format!("{scheme}://{bucket}.{rest}")
    } else {
        with_scheme.clone()
    };
    Ok(Address { endpoint, in_host })
}

fn s3(block: &S3Store, secrets: &Path) -> Result<Store, Error> {
    let (bucket, key) = split(&block.path)?;
    let own = match block.aws_secret {
        Some(_) => Some(credentials::aws(secrets)?),
        None => None,
    };
    let region = own.as_ref().and_then(|aws| aws.region.clone()).or_else(|| {
        let set = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        set("AWS_REGION").or_else(|| set("AWS_DEFAULT_REGION"))
    });
    let region = region.unwrap_or_else(|| "us-east-1".into());
    let endpoint = block
        .endpoint
        .clone()
        .unwrap_or_else(|| format!("https://s3.{region}.amazonaws.com"));
    let address = address(&endpoint, &bucket, block.force_path_style)?;
    amazon(own, &region, &address, (&bucket, key), secrets)
}

/// OSS is spoken to in the protocol of S3, which it serves beside its own (ADR 9).
fn oss(block: &OssStore, secrets: &Path) -> Result<Store, Error> {
    let (bucket, key) = split(&block.path)?;
    let own = match block.oss_secret {
        Some(_) => Some(Aws {
            key_id: credentials::needed(secrets, "accessKeyID")?,
            secret: credentials::needed(secrets, "accessKeySecret")?,
            token: credentials::file(secrets, "securityToken"),
            region: None,
        }),
        None => None,
    };
    let endpoint = block.endpoint.clone().unwrap_or_else(|| OSS_ENDPOINT.into());
    let address = address(&endpoint, &bucket, false)?;
    amazon(own, &oss_region(&endpoint), &address, (&bucket, key), secrets)
}

/// `oss-cn-hangzhou` of `http://oss-cn-hangzhou-internal.aliyuncs.com`.
fn oss_region(endpoint: &str) -> String {
    let host = endpoint.split("://").last().unwrap_or(endpoint);
    let word = host.split('.').find(|word| word.starts_with("oss-"));
    word.map_or("oss-cn-hangzhou", |word| word.trim_end_matches("-internal"))
        .to_owned()
}

fn amazon(
    own: Option<Aws>,
    region: &str,
    address: &Address,
    (bucket, key): (&str, String),
    secrets: &Path,
) -> Result<Store, Error> {
    // Without a secret the environment says who we are: keys, a web identity, the container's or the node's role.
    let builder = match own {
        Some(aws) => {
            let builder = AmazonS3Builder::new()
                .with_access_key_id(aws.key_id)
                .with_secret_access_key(aws.secret);
            match aws.token {
                Some(token) => builder.with_token(token),
                None => builder,
            }
        }
        None => AmazonS3Builder::from_env(),
    };
    let builder = builder
        .with_bucket_name(bucket)
        .with_region(region)
        .with_endpoint(&address.endpoint)
        .with_virtual_hosted_style_request(address.in_host)
        .with_client_options(roots::client(secrets)?)
        .with_retry(retries());
    // TLS protects the payload already; without it, the signature covers what nobody reads back.
    let unsigned = Arc::new(built(builder.clone().with_unsigned_payload(true).build(), bucket)?);
    let store = if address.endpoint.starts_with("https://") {
        unsigned.clone()
    } else {
        Arc::new(built(builder.build(), bucket)?)
    };
    Ok(Store::new(store.clone(), Some(store), bucket.to_owned(), key).with_unsigned(unsigned))
}

fn abs(block: &AbsStore, secrets: &Path) -> Result<Store, Error> {
    let (container, key) = split(&block.path)?;
    let mut builder = MicrosoftAzureBuilder::from_env();
    if block.abs_secret.is_some() {
        let account = credentials::needed(secrets, "storage-account")?;
        let suffix = azure_suffix(credentials::file(secrets, "cloud").as_deref())?;
        builder = MicrosoftAzureBuilder::new()
            .with_access_key(credentials::needed(secrets, "storage-key")?)
            .with_endpoint(format!("https://{account}.blob.{suffix}"))
            .with_account(account);
    }
    if let Some(endpoint) = &block.endpoint {
        builder = builder.with_endpoint(endpoint.trim_end_matches('/').to_owned());
    }
    let store = builder
        .with_container_name(&container)
        .with_client_options(roots::client(secrets)?)
        .with_retry(retries())
        .build();
    let store = Arc::new(built(store, &block.path)?);
    Ok(Store::new(store.clone(), Some(store), container, key))
}

/// The domain of a cloud, by the names that Azure's own tools use.
fn azure_suffix(cloud: Option<&str>) -> Result<&'static str, Error> {
    let plain = cloud.unwrap_or_default().to_lowercase().replace("cloud", "");
    match plain.as_str() {
        "" | "azure" | "azurepublic" => Ok("core.windows.net"),
        "azurechina" => Ok("core.chinacloudapi.cn"),
        "azureusgovernment" | "azureusgov" => Ok("core.usgovcloudapi.net"),
        "azuregerman" => Ok("core.cloudapi.de"),
        _ => Err(Error::new(
            Reason::SecretInvalid,
            format!(
                "the secret's \"cloud\" is \"{}\": write AzurePublicCloud, AzureChinaCloud, AzureUSGovernmentCloud or AzureGermanCloud",
                cloud.unwrap_or_default()
            ),
        )),
    }
}

fn gcs(block: &GcsStore, secrets: &Path) -> Result<Store, Error> {
    let (bucket, key) = split(&block.path)?;
    let endpoint = block.endpoint.as_deref().map(|endpoint| endpoint.trim_end_matches('/'));
    let given = |bearer: String| {
        let fixed = Arc::new(StaticCredentialProvider::new(GcpCredential { bearer }));
        GoogleCloudStorageBuilder::new().with_credentials(fixed)
    };
    let mut builder = match &block.gcp_secret {
        Some(_) => match credentials::file(secrets, "access-token") {
            Some(token) => given(token),
            None => {
                let account = credentials::needed(secrets, "credentials.json")?;
                GoogleCloudStorageBuilder::new().with_service_account_key(account)
            }
        },
        None => GoogleCloudStorageBuilder::from_env(),
    };
    if let Some(endpoint) = endpoint {
        builder = builder.with_base_url(endpoint);
    }
    let store = builder
        .with_bucket_name(&bucket)
        .with_client_options(roots::client(secrets)?)
        .with_retry(retries())
        .build();
    let store = Arc::new(built(store, &block.path)?);
    Ok(Store::new(store.clone(), Some(store), bucket, key))
}

fn folder(block: &FileStore, claim: &Path) -> Result<Store, Error> {
    if !claim.is_dir() {
        let message = format!(
            "the claim is not mounted at {}: correct file.claimName",
            claim.display()
        );
        return Err(Error::new(Reason::BucketMissing, message));
    }
    let key = block.path.trim_start_matches('/');
    if key.is_empty() || key.ends_with('/') {
        let message = format!(
            "the path \"{}\" names no file: write it as \"etcd/etcd.backup\"",
            block.path
        );
        return Err(Error::new(Reason::StoreInvalid, message));
    }
    let store = built(LocalFileSystem::new_with_prefix(claim), &block.path)?.with_fsync(true);
    Ok(Store::new(Arc::new(store), None, String::new(), key.to_owned()).in_folder(claim))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bucket_goes_where_the_host_can_carry_it() {
        let given = |endpoint: &str, bucket: &str, force: bool| {
            let found = address(endpoint, bucket, force).expect("an address");
            (found.endpoint, found.in_host)
        };
        assert_eq!(
            given("https://s3.eu-central-1.amazonaws.com", "b", false),
            ("https://b.s3.eu-central-1.amazonaws.com".into(), true)
        );
        assert_eq!(
            given("http://minio:9000/", "b", true),
            ("http://minio:9000".into(), false)
        );
        assert_eq!(
            given("http://minio:9000", "b", false),
            ("http://b.minio:9000".into(), true)
        );
        assert_eq!(
            given("http://127.0.0.1:9000", "b", false),
            ("http://127.0.0.1:9000".into(), false)
        );
        assert_eq!(
            given("store.example", "a.b", false),
            ("https://store.example".into(), false)
        );
        assert!(address("ftp://x", "b", false).is_err() && address("http://", "b", false).is_err());
        assert_eq!(
            oss_region("http://oss-cn-beijing-internal.aliyuncs.com"),
            "oss-cn-beijing"
        );
        assert_eq!(oss_region("http://127.0.0.1:9000"), "oss-cn-hangzhou");
    }

    #[test]
    fn the_identity_of_a_pod_is_sent_only_to_the_provider() {
        let folder = tempfile::tempdir().expect("a folder");
        let open = |blocks: &StoreBlocks| Store::open(blocks, folder.path(), folder.path());
        let endpoint = Some("https://store.example".to_owned());
        let gcs = StoreBlocks {
            gcs: Some(GcsStore {
                path: "b/k".into(),
                endpoint: endpoint.clone(),
                ..GcsStore::default()
            }),
            ..StoreBlocks::default()
        };
        let abs = StoreBlocks {
            abs: Some(AbsStore {
                path: "b/k".into(),
                endpoint,
                ..AbsStore::default()
            }),
            ..StoreBlocks::default()
        };
        for (blocks, secret) in [(gcs, "gcpSecret"), (abs, "absSecret")] {
            let Err(refused) = open(&blocks) else {
                panic!("{secret} is not asked for")
            };
            assert_eq!(refused.reason, Reason::StoreInvalid);
            assert!(refused.to_string().contains(&format!("set {secret}")), "{refused}");
        }
    }

    #[test]
    fn a_path_names_a_bucket_and_a_file() {
        assert_eq!(split("b/a/c").expect("both"), ("b".into(), "a/c".into()));
        for path in ["", "b", "b/", "/a", "b/a/"] {
            assert_eq!(split(path).expect_err(path).reason, Reason::StoreInvalid);
        }
    }
}
