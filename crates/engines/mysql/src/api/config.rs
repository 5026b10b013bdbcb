//! `spec.config`: names and values of system variables, and which are Stateward's to set.

use std::collections::BTreeMap;

use serde_json::Value;

/// Variables that Stateward sets itself. A trailing `*` stands for any ending.
pub const OWNED: [&str; 38] = [
    "server_id",
    "gtid_mode",
    "log_bin",
    "log_bin_index",
    "read_only",
    "super_read_only",
    "rpl_semi_sync_*",
    "datadir",
    "socket",
    "port",
    "bind_address",
    "relay_log*",
    "skip_replica_start",
    "skip_slave_start",
    "plugin_load*",
    "sync_binlog",
    "innodb_flush_log_at_trx_commit",
    "sync_relay_log",
    "enforce_gtid_consistency",
    "log_replica_updates",
    "log_slave_updates",
    "replica_preserve_commit_order",
    "slave_preserve_commit_order",
    "binlog_expire_logs_*",
    "binlog_do_db",
    "binlog_ignore_db",
    "replicate_*",
    "init_file",
    "pid_file",
    "tmpdir",
    "user",
    "admin_address",
    "admin_port",
    "mysqlx*",
    "ssl_*",
    "require_secure_transport",
    "report_host",
    "report_port",
];

/// The owned names that admission refuses by name: every word above without `*`, and the members of its families.
pub const OWNED_FAMILIES: [&str; 33] = [
    "rpl_semi_sync_source_enabled",
    "rpl_semi_sync_source_timeout",
    "rpl_semi_sync_source_wait_for_replica_count",
    "rpl_semi_sync_source_wait_no_replica",
    "rpl_semi_sync_source_wait_point",
    "rpl_semi_sync_source_trace_level",
    "rpl_semi_sync_replica_enabled",
    "rpl_semi_sync_replica_trace_level",
    "rpl_semi_sync_master_enabled",
    "rpl_semi_sync_master_timeout",
    "rpl_semi_sync_slave_enabled",
    "relay_log",
    "relay_log_index",
    "relay_log_purge",
    "relay_log_recovery",
    "relay_log_space_limit",
    "plugin_load",
    "plugin_load_add",
    "binlog_expire_logs_seconds",
    "binlog_expire_logs_auto_purge",
    "replicate_do_db",
    "replicate_ignore_db",
    "replicate_do_table",
    "replicate_ignore_table",
    "replicate_wild_do_table",
    "replicate_wild_ignore_table",
    "replicate_rewrite_db",
    "replicate_same_server_id",
    "mysqlx",
    "mysqlx_port",
    "ssl_ca",
    "ssl_cert",
    "ssl_key",
];

/// Variables that MySQL reads only when it starts. The others are set in running servers.
pub const STATIC: [&str; 84] = [
    "authentication_policy",
    "auto_generate_certs",
    "back_log",
    "basedir",
    "binlog_gtid_simple_recovery",
    "binlog_rotate_encryption_master_key_at_startup",
    "binlog_row_event_max_size",
    "build_id",
    "caching_sha2_password_auto_generate_rsa_keys",
    "caching_sha2_password_digest_rounds",
    "character_set_system",
    "character_sets_dir",
    "core_file",
    "default_authentication_plugin",
    "disabled_storage_engines",
    "disconnect_on_expired_password",
    "ft_max_word_len",
    "ft_min_word_len",
    "ft_query_expansion_limit",
    "ft_stopword_file",
    "init_replica",
    "innodb_adaptive_hash_index_parts",
    "innodb_autoinc_lock_mode",
    "innodb_buffer_pool_chunk_size",
    "innodb_buffer_pool_instances",
    "innodb_buffer_pool_load_at_startup",
    "innodb_data_file_path",
    "innodb_data_home_dir",
    "innodb_dedicated_server",
    "innodb_directories",
    "innodb_doublewrite_dir",
    "innodb_doublewrite_files",
    "innodb_doublewrite_pages",
    "innodb_flush_method",
    "innodb_force_load_corrupted",
    "innodb_force_recovery",
    "innodb_ft_cache_size",
    "innodb_ft_max_token_size",
    "innodb_ft_min_token_size",
    "innodb_ft_sort_pll_degree",
    "innodb_ft_total_cache_size",
    "innodb_log_group_home_dir",
    "innodb_numa_interleave",
    "innodb_open_files",
    "innodb_page_cleaners",
    "innodb_page_size",
    "innodb_purge_threads",
    "innodb_read_io_threads",
    "innodb_read_only",
    "innodb_rollback_on_timeout",
    "innodb_sort_buffer_size",
    "innodb_sync_array_size",
    "innodb_temp_data_file_path",
    "innodb_temp_tablespaces_dir",
    "innodb_undo_directory",
    "innodb_use_native_aio",
    "innodb_validate_tablespace_paths",
    "innodb_write_io_threads",
    "large_pages",
    "lc_messages_dir",
    "local_infile_disabled",
    "locked_in_memory",
    "log_error",
    "lower_case_file_system",
    "lower_case_table_names",
    "max_digest_length",
    "mecab_rc_file",
    "metadata_locks_cache_size",
    "myisam_mmap_size",
    "myisam_recover_options",
    "named_pipe",
    "ngram_token_size",
    "old",
    "open_files_limit",
    "performance_schema",
    "performance_schema_digests_size",
    "persist_only_admin_x509_subject",
    "persist_sensitive_variables_in_plaintext",
    "secure_file_priv",
    "shared_memory",
    "skip_name_resolve",
    "skip_networking",
    "table_open_cache_instances",
    "thread_handling",
];

/// A name as MySQL reads it: '-' and '_' are the same, and case does not matter.
pub fn normal(name: &str) -> String {
    name.trim().to_ascii_lowercase().replace('-', "_")
}

/// Stateward sets this variable itself. A `loose_` prefix hides nothing.
pub fn is_owned(name: &str) -> bool {
    let name = normal(name);
    let mut plain = name.as_str();
    while let Some(rest) = ["loose_", "skip_", "enable_", "disable_", "maximum_"]
        .into_iter()
        .find_map(|prefix| plain.strip_prefix(prefix))
    {
        if matches(plain) {
            return true;
        }
        plain = rest;
    }
    matches(plain)
}

fn matches(name: &str) -> bool {
    OWNED.iter().any(|owned| match owned.strip_suffix('*') {
        Some(family) => name.starts_with(family),
        None => name == *owned,
    })
}

/// MySQL reads this variable only when it starts.
pub fn is_static(name: &str) -> bool {
    let name = normal(name);
    let family = name.starts_with("performance_schema_") || name.starts_with("innodb_data_");
    family || STATIC.contains(&name.as_str())
}

/// A value as it is written in my.cnf and in `SET GLOBAL`. `None`: it is none of string, number or boolean.
pub fn text(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        Value::Bool(true) => Some("ON".into()),
        Value::Bool(false) => Some("OFF".into()),
        Value::Null | Value::Array(_) | Value::Object(_) => None,
    }
}

/// Variables with their normal names and their values as text. What is no value is left out: validation reports it.
pub fn normalized(config: &BTreeMap<String, Value>) -> BTreeMap<String, String> {
    let entries = config.iter();
    entries
        .filter_map(|(name, value)| Some((normal(name), text(value)?)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owned_variables_are_found_however_they_are_written() {
        for name in [
            "server_id",
            "server-id",
            "Server-ID",
            "rpl_semi_sync_source_enabled",
            "relay-log-recovery",
            "loose_rpl_semi_sync_source_timeout",
            "loose-skip-log-bin",
            "skip_log_bin",
            "replicate_do_db",
            "super-read-only",
            "plugin-load-add",
        ] {
            assert!(is_owned(name), "{name}");
        }
        for name in [
            "max_connections",
            "innodb_buffer_pool_size",
            "skip_name_resolve",
            "binlog_row_image",
            "port_x",
        ] {
            assert!(!is_owned(name), "{name}");
        }
    }

    #[test]
    fn every_name_that_admission_refuses_is_owned() {
        assert!(OWNED_FAMILIES.iter().all(|name| is_owned(name)));
    }

    #[test]
    fn values_are_written_as_mysql_reads_them() {
        for (value, written) in [
            (serde_json::json!("1G"), Some("1G")),
            (serde_json::json!(500), Some("500")),
            (serde_json::json!(0.5), Some("0.5")),
            (serde_json::json!(true), Some("ON")),
            (serde_json::json!({"a": 1}), None),
            (serde_json::json!([1]), None),
        ] {
            assert_eq!(text(&value).as_deref(), written);
        }
    }
}
